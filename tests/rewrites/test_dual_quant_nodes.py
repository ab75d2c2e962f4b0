"""Oracle: the steps written down in each test, the producer's before the consumer's, by place in the notation
of :mod:`tests.helpers.plans`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.helpers import conversion, plans
from tests.helpers.quantization import Given
from transforms.dual_quant_nodes import dual_quant_nodes
from transforms.insert_qdq import insert_qdq, raise_opset
from transforms.model import graph_proto
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import Scheme, preset

WEIGHTS: plans.Weights = dict.fromkeys("uvw", (4, 4))
CHAIN = """(float[4,4] x) => (float[4,4] y) {
    [one] a = MatMul(x, u) [two] d = MatMul(a, v) [three] y = MatMul(d, w) }"""


def doubled(
    scheme: str | Scheme, text: str = CHAIN, weights: plans.Weights = WEIGHTS, **changes: Any
) -> tuple[int, dict[str, str]]:
    """Return how many tensors changed and all steps; assert that a second call changes nothing."""
    planned = plans.plan(text, weights, scheme, **changes)
    before = plans.reads(planned)
    count = dual_quant_nodes(planned)
    found = plans.reads(planned)
    assert dual_quant_nodes(planned) == 0
    assert plans.reads(planned) == found
    assert found.keys() == before.keys()
    return count, found


@pytest.mark.parametrize(
    ("scheme", "layers", "changed"),
    (
        ("BF16", {"two": "bfp16"}, {"d.0": "bfloat16+bfp16", "y.0": "bfp16+bfloat16"}),
        ("BFP16", {"two": "bfloat16"}, {"d.0": "bfp16+bfloat16", "y.0": "bfloat16+bfp16"}),
        ("A16W8", {"two": "int8"}, {"d.0": "int16+int8", "y.0": "int8+int16"}),
        ("A8W8", {"two": "mx9"}, {"d.0": "int8+mx9", "y.0": "mx9+int8"}),
        ("A8W8", {"two": "float32"}, {}),
        ("A8W8", {}, {}),
        ("A8W8", {"one": "int16"}, {"a.0": "int8+int16", "d.0": "int16+int8"}),
        ("A8W8", {"three": "int16"}, {"y.0": "int8+int16", "=y": "int16+int8"}),
    ),
)
def test_borders_along_a_chain(scheme: str, layers: dict[str, str], changed: dict[str, str]) -> None:
    planned = plans.reads(plans.plan(CHAIN, WEIGHTS, scheme, layers=layers))
    assert doubled(scheme, layers=layers) == (len(changed), {**planned, **changed})


def test_several_readers_of_different_formats_branch_behind_the_producer_s() -> None:
    text = """(float[4,4] x) => (float[4,4] y, float[4,4] z, float[4,4] e, float[4,4] f) {
        [one] a = MatMul(x, u) [two] y = MatMul(a, v) [three] z = MatMul(a, w) [four] e = MatMul(a, u)
        f = Exp(a) }"""
    count, found = doubled("A16W8", text, layers={"two": "int8", "three": "bfp16"})
    read = {place: found[place] for place in ("y.0", "z.0", "e.0")}
    assert read == {"y.0": "int16+int8", "z.0": "int16+bfp16", "e.0": "int16"}
    assert "f.0" not in found
    assert count == 2  # a and, at the output, y


@pytest.mark.parametrize(
    "between",
    (
        "r = Relu(a)",
        "r = Clip(a, zero)",
        "s = Add(a, b) r = Relu(s)",
        "t = Transpose(a) r = Transpose(t)",
        "s = Add(b, a) t = Relu(s) r = Transpose(t)",
        "r = Identity(a)",
    ),
)
def test_the_producer_is_the_layer_behind_relu_bias_and_moves(between: str) -> None:
    text = f"""(float[4,4] x) => (float[4,4] y) <float zero = {{0}}> {{
        [one] a = MatMul(x, u) {between} [two] y = MatMul(r, v) }}"""
    weights: plans.Weights = {"u": (4, 4), "v": (4, 4)} | ({"b": (4,)} if "Add" in between else {})
    _, found = doubled("BFP16", text, weights, layers={"two": "bfloat16"})
    assert found["y.0"] == "bfp16+bfloat16"
    _, found = doubled("A8W8", text, weights, layers={"two": "mx9"})
    assert found["y.0"] == "int8+mx9"


def test_a_relu_that_is_a_layer_of_its_own_is_the_producer() -> None:
    text = """(float[4,4] x) => (float[4,4] a, float[4,4] y) {
        [one] a = MatMul(x, u) [act] r = Relu(a) [two] y = MatMul(r, v) }"""
    weights: plans.Weights = {"u": (4, 4), "v": (4, 4)}
    _, found = doubled("A16W8", text, weights, layers={"act": "int8", "two": "mx9"})
    assert (found["r.0"], found["y.0"]) == ("int16+int8", "int8+mx9")


@pytest.mark.parametrize(
    ("text", "wanted"),
    (
        ("[one] y = MatMul(x, u)", "int8+mx9"),
        ("t = Transpose(x) [one] y = MatMul(t, u)", "int8+mx9"),
        ("e = Exp(x) [one] y = MatMul(e, u)", "mx9"),
        ("[one] y = MatMul(v, u)", None),
        ("t = Transpose(v) [one] y = MatMul(t, u)", "mx9"),
    ),
)
def test_inputs_of_the_model_have_the_format_of_the_scheme(text: str, wanted: str | None) -> None:
    head = f"(float[4,4] x) => (float[4,4] y) {{ {text} }}"
    used = {name: WEIGHTS[name] for name in "uv" if f"{name})" in text or f"{name}," in text}
    _, found = doubled("A8W8", head, used, layers={"one": "mx9"})
    assert found["y.0"] == (wanted or "mx9")
    assert found["y.1"] == "mx9"


def test_an_output_goes_on_in_the_format_of_the_scheme_and_its_readers_do_not() -> None:
    text = """(float[4,4] x) => (float[4,4] a, float[4,4] y) {
        [one] a = MatMul(x, u) [two] y = MatMul(a, v) }"""
    weights: plans.Weights = {"u": (4, 4), "v": (4, 4)}
    count, found = doubled("A8W8", text, weights, layers={"one": "int16", "two": "int16"})
    assert found["=a"] == found["=y"] == "int16+int8"
    assert (found["a.0"], found["y.0"]) == ("int8+int16", "int16")
    assert count == 3


def test_a_layer_that_makes_float32_has_no_format() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { [one] a = MatMul(x, u) e = Softmax(a) [two] y = MatMul(e, v) }"
    weights: plans.Weights = {"u": (4, 4), "v": (4, 4)}
    assert doubled("A8W8", text, weights, layers={"two": "mx9"})[1]["y.0"] == "mx9"
    assert doubled("A8W8", text, weights, layers={"two": "mx9"}, other="bfloat16")[1]["y.0"] == "bfloat16+mx9"
    everything = doubled("A8W8", text, weights, layers={"two": "mx9"}, quantize_all_op_types=True)[1]
    assert everything["y.0"] == "int8+mx9"
    weight_only = doubled(Scheme("float32", "int8"), text, weights, layers={"two": "mx9"})[1]
    assert weight_only["y.0"] == "mx9"


def test_constants_have_one_grid() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { a = MatMul(x, u) [two] s = Mul(a, b) y = MatMul(s, v) }"
    weights: plans.Weights = {"u": (4, 4), "v": (4, 4), "b": (4,)}
    _, found = doubled("BF16", text, weights, layers={"two": "float16"})
    assert found["s.0"] == "bfloat16+float16"
    assert found["s.1"] == "float16"
    assert "+" not in found["a.1"] + found["y.1"]


BODIES = """(float[4,4] x, bool c) => (float[4,4] y) { [one] a = MatMul(x, u)
    y = If (c) <then_branch = t () => (float[4,4] p) { q = MatMul(a, v) r = Exp(q) p = Transpose(r) },
                else_branch = e () => (float[4,4] s) { n = Transpose(x) s = Exp(n) }> }"""


@pytest.mark.parametrize("scheme", ("A8W8", "BFP16"))
def test_bodies(scheme: str) -> None:
    """What a layer outside makes is on its grid; nothing inside that would need a range."""
    inner = preset(scheme).activation
    weights: plans.Weights = {"u": (4, 4), "v": (4, 4)}
    planned = plans.plan(BODIES, weights, scheme, other="bfloat16")
    dual_quant_nodes(planned)
    found = plans.reads(planned)
    assert found["r.0"] == ("bfloat16" if scheme == "A8W8" else "bfp16+bfloat16")
    assert found["q.0"] == ("int8+bfloat16" if scheme == "A8W8" else "bfp16")
    assert found["s.0"] == ("bfloat16" if scheme == "A8W8" else "bfp16+bfloat16")
    assert {tensor.name for tensor in planned.measured()} <= ({"x", "a", "y"} if inner == "int8" else set())
    assert all(planned.specs.is_in_main_graph(tensor) for tensor in planned.measured())


def test_what_enters_a_body_as_its_input_has_no_format() -> None:
    text = """(float[4,4] x, int64 n) => (float[4,4] y) <bool on = {1}> {
        y = Loop (n, on, x) <body = b (int64 i, bool go, float[4,4] s) => (bool more, float[4,4] z) {
            more = Identity(go) [inner] z = MatMul(s, u) }> }"""
    found = doubled("BF16", text, {"u": (4, 4)}, layers={"inner": "mx9"})[1]
    assert found["z.0"] == "mx9"


def test_what_is_written() -> None:
    """BFP first, then bfloat16; the numbers are those of the two roundings one after the other."""
    graph = plans.graph(CHAIN, WEIGHTS)
    scheme = preset("BFP16").with_(layers={"two": "bfloat16"}, equalize_layers=False)
    planned = QuantizationPlan(graph, scheme)
    dual_quant_nodes(planned)
    insert_qdq(planned)
    model = graph_proto.export_model(graph)
    ops_of = {node.output[0]: node for node in model.graph.node}
    two = next(node for node in model.graph.node if node.name == "two")
    dequantize = ops_of[two.input[0]]
    quantize = ops_of[dequantize.input[0]]
    block = ops_of[quantize.input[0]]
    chain = [dequantize.op_type, quantize.op_type, block.op_type, block.input[0]]
    assert chain == ["ExtendedDequantizeLinear", "ExtendedQuantizeLinear", "BFPQuantizeDequantize", "a"]


def test_outputs_and_readers_share_what_comes_first() -> None:
    text = """(float[4,4] x) => (float[4,4] a, float[4,4] y) {
        [one] a = MatMul(x, u) [two] y = MatMul(a, v) }"""
    graph = plans.graph(text, {"u": (4, 4), "v": (4, 4)})
    scheme = preset("A8W8").with_(layers={"*": "int16"}, weight_method="MinMax")
    raise_opset(graph, scheme)
    planned = QuantizationPlan(graph, scheme)
    dual_quant_nodes(planned)
    insert_qdq(planned, Given({"x": (-1, 1), "a": (-2, 2), "y": (-4, 4)}))
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    found = conversion.run(model, {"x": np.eye(4, dtype=np.float32)})
    step = np.float32(2 / 127)
    assert np.array_equal(np.rint(found["a"] / step) * step, found["a"])
    behind = [node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    assert [name for name in behind if name.startswith("a")] == ["a_raw", "a_raw_dequantized"]
