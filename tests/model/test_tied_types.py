"""Types behind operators that onnx has no schema of. Oracle: the types with which ONNX Runtime runs them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from transforms import model_io
from transforms.graph import walk
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import preset

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "own": 1]> main '
WEIGHT = "<float[4,4] w, float[4] b, int64[1] i = {1}, bool t = {1}, int64 n = {2}>"


def _types(text: str) -> dict[str, object]:
    graph = model_io.load(onnx.parser.parse_model(HEAD + text))
    return {tensor.name: tensor.dtype for node in walk.nodes(graph) for tensor in node.outputs}


def _model(body: str) -> str:
    return f"(float[2,4] x, int64[2] k) => (float[N,M] y) {WEIGHT} {{ {body} }}"


BODIES: dict[str, dict[str, object]] = {
    "a = own.Odd(x) y = MatMul(a, w)": {"a": np.float32},
    "a = own.Odd(x) c = own.Odd(x) d = Mul(a, c) e = Relu(d) y = Add(e, b)": dict.fromkeys(
        "acde", np.float32
    ),
    "a = own.Odd(k) c = Add(a, i) y = own.Odd(c)": {"a": np.int64, "c": np.int64},
    "a = own.Odd(x) s = Shape(a) c = own.Odd(s) d = Concat <axis=0> (c, i) y = Reshape(x, d)": {
        "c": np.int64
    },
    "a = own.Odd(x) y = own.Odd(a)": {"a": None},
    "a = own.Odd(x) c = Cast <to=1> (a) y = Relu(c)": {"a": None, "c": np.float32},
    "a = own.Odd(x) q = SequenceConstruct(a, x) y = SequenceAt(q, n)": {"a": np.float32},
    "a = ms.QuickGelu(x) c = ms.QuickGelu(a) y = Relu(x)": {"a": np.float32, "c": np.float32},
    """y = If (t) <then_branch = f () => (p) { p = own.Odd(x) },
        else_branch = g () => (r) { r = Relu(x) }>""": {"p": np.float32},
    """y = Loop (n, t, x) <body = f (int64 j, bool c, float[N,M] v) => (bool d, float[N,M] u)
        { d = Identity(c) a = own.Odd(v) u = Add(a, v) }>""": {"a": np.float32},
}


@pytest.mark.parametrize("body", BODIES)
def test_operators_around_tell_the_type(body: str) -> None:
    types = _types(_model(body.replace("ms.", "com.microsoft.")))
    assert {name: types[name] for name in BODIES[body]} == BODIES[body]


def test_a_name_in_two_branches_has_the_type_of_each() -> None:
    """Both branches call their tensor p: one of floats, one of integers."""
    branch = "{head} () => (float[N,M] {out}) {{ p = own.Odd({source}) q = Add(p, {other}) {out} = {end} }}"
    one = branch.format(head="f", out="u", source="x", other="b", end="Relu(q)")
    two = branch.format(head="g", out="v", source="k", other="i", end="Cast <to=1> (q)")
    body = f"y = If (t) <then_branch = {one}, else_branch = {two}>"
    graph = model_io.load(onnx.parser.parse_model(HEAD + _model(body)))
    found = {
        tensor.dtype for node in walk.nodes(graph) for tensor in node.outputs if tensor.name.startswith("p")
    }
    assert {np.dtype(kind) for kind in found if kind is not None} == {np.dtype("f4"), np.dtype("i8")}


def test_activations_behind_an_attention_are_quantized() -> None:
    """They stayed float32, and weights alone were quantized, without a word."""
    text = """(float[1,3,4] x, float[1,2,3,2] k) => (float[1,3,4] y, float[B,C,D,E] l)
        <float[4,4] w, float[4] b> {
            a, l, v = com.microsoft.MultiHeadAttention <num_heads=2> (x, x, x, , , , k, k)
            c = Add(a, b) y = MatMul(c, w)
        }"""
    model = onnx.parser.parse_model(HEAD + text)
    for name, shape in (("w", (4, 4)), ("b", (4,))):
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    del model.graph.value_info[:]
    plan = QuantizationPlan(model_io.load(model), preset("A8W8"))
    assert "c" in {tensor.name for tensor in plan.measured()}


@pytest.mark.parametrize(
    ("operator", "shape", "rank"),
    [
        ("CausalConvWithState (x, w, b)", "1,4,6", 3),
        ("CausalConvWithState <ndim = 2> (x, w, b)", "1,4,6,6", 4),
        ("GatedDeltaNet (x, x, x, , , , b)", "6,2,4", 3),
        ("GatedDeltaNet (x, x, x, , , , b)", "1,6,2,4", 4),
        ("GatedDeltaNet (x, , , , , , b)", "6,12", None),
    ],
)
def test_ranks_behind_recurrences_are_those_of_an_input(operator: str, shape: str, rank: int | None) -> None:
    """As ONNX Runtime documents the operators; of packed queries, keys and values there is another rank."""
    text = f"(float[{shape}] x, float[N] w, float[N] b) => (float[M] y) {{ a = ms.{operator} y = Relu(a) }}"
    graph = model_io.load(onnx.parser.parse_model(HEAD + text.replace("ms.", "com.microsoft.")))
    (made,) = (tensor for node in walk.nodes(graph) for tensor in node.outputs if tensor.name == "a")
    assert (None if made.shape is None else len(made.shape)) == rank
