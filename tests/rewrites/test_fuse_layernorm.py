"""Fusing layer normalisations.

Oracle: the formula in float64 NumPy; both the original and the fused model must lie within the rounding bound
of float32 around it (see ``rounding_bound`` beside the forms).
"""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

from tests.helpers import fusion
from tests.helpers.layernorm_forms import (
    BATCH,
    BIAS,
    EPSILON,
    FORMS,
    NO_EPSILON,
    OTHER_FORMS,
    RANDOM,
    RESHAPED,
    SCALE,
    TAIL,
    TWO_PASS,
    WEIGHTS,
    WIDTH,
    X,
    exact,
    expand,
    model,
    rounding_bound,
)
from transforms.convert_opset import convert_opset
from transforms.fuse_layernorm import find_layernorm, fuse_layernorm


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_one_node(form: str, opset: int) -> None:
    original = model(FORMS[form], opset)
    graph = fusion.load(original)
    assert find_layernorm(graph) == 1
    assert fuse_layernorm(graph) == 1
    assert set(fusion.operators(graph)) == {"LayerNormalization"}
    assert fuse_layernorm(graph) == 0 == find_layernorm(graph)
    fused = fusion.export(graph)
    for built in (original, fused):
        (y,) = fusion.run(built, x=X)
        assert np.all(np.abs(y - exact(X)) <= rounding_bound(X))


def test_without_epsilon_it_is_zero() -> None:
    original = model(NO_EPSILON)
    graph = fusion.load(original)
    assert fuse_layernorm(graph) == 1
    assert graph.nodes[0].attrs["epsilon"] == 0
    before, after = (fusion.run(built, x=X)[0] for built in (original, fusion.export(graph)))
    assert np.all(np.abs(after - before) <= 2 * rounding_bound(X))


def test_node_carries_epsilon_axis_scale_and_bias() -> None:
    graph = fusion.load(model(FORMS["pytorch"]))
    fuse_layernorm(graph)
    (node,) = graph.nodes
    assert node.attrs == {"axis": -1, "epsilon": float(np.float32(EPSILON))}
    assert [tensor.name for tensor in node.inputs] == ["x", "y_scale", "y_bias"]
    np.testing.assert_array_equal(node.inputs[1].values, SCALE)
    np.testing.assert_array_equal(node.inputs[2].values, BIAS)
    assert node.outputs[0] is graph.outputs[0]


def test_sample_variance_is_absorbed_in_scale_and_epsilon() -> None:
    # n / (n - 1) * (v + (n - 1) / n * epsilon): the factor goes into scale, epsilon shrinks.
    body = "m = Mean(x) d = Sub(x, m) p = Mul(d, d) t = Sum(p) v = Div(t, free) e = Add(v, eps) s = Sqrt(e)"
    weights = {**WEIGHTS, "free": np.float32(WIDTH - 1)}
    graph = fusion.load(fusion.parse(expand(f"{body} n = Div(d, s) {TAIL}", 17), weights))
    assert fuse_layernorm(graph) == 1
    factor = WIDTH / (WIDTH - 1)
    np.testing.assert_allclose(graph.nodes[0].inputs[1].values, SCALE / np.sqrt(factor), rtol=2.0**-23)
    assert graph.nodes[0].attrs["epsilon"] == pytest.approx(EPSILON / factor, rel=2.0**-23)


def test_without_scale_ones_take_its_place() -> None:
    body = f"{TWO_PASS} e = Add(v, eps) s = Sqrt(e) y = Div(d, s)"
    graph = fusion.load(model(body))
    assert fuse_layernorm(graph) == 1
    assert len(graph.nodes[0].inputs) == 2
    np.testing.assert_array_equal(graph.nodes[0].inputs[1].values, np.ones(WIDTH, np.float32))
    (y,) = fusion.run(fusion.export(graph), x=X)
    assert np.all(np.abs(y - exact(X, 1, 0)) <= rounding_bound(X, 1, 0))


@pytest.mark.parametrize(
    ("shape", "axes", "parameter"),
    [((2, 6, 5), (1,), (6, 1)), ((2, 6, 5, 4), (1, 3), (6, 1, 4)), ((2, 6, 5, 4), (1,), (6, 1, 1))],
)
def test_other_axes_are_transposed_there_and_back(
    shape: tuple[int, ...], axes: tuple[int, ...], parameter: tuple[int, ...]
) -> None:
    weights = {
        **WEIGHTS,
        "axes": np.array(axes),
        "scale": RANDOM.normal(1, 0.5, parameter).astype(np.float32),
        "bias": RANDOM.normal(0, 1, parameter).astype(np.float32),
    }
    size = ",".join(map(str, shape[1:]))
    body = expand(FORMS["batch norm"], 18)
    graph = fusion.load(
        fusion.parse(body, weights, inputs=f"float[B,{size}] x", outputs=f"float[B,{size}] y", opset=18)
    )
    assert fuse_layernorm(graph) == 1
    assert [node.op for node in graph.nodes] == ["Transpose", "LayerNormalization", "Transpose"]
    x = RANDOM.normal(0, 1, shape).astype(np.float32)
    (y,) = fusion.run(fusion.export(graph), x=x)
    order = [axis for axis in range(len(shape)) if axis not in axes] + list(axes)
    rows, result = (array.transpose(order).reshape(-1, np.prod(parameter)) for array in (x, y))
    affine = weights["scale"].ravel(), weights["bias"].ravel()
    assert y.shape == shape
    assert np.all(np.abs(result - exact(rows, *affine)) <= rounding_bound(rows, *affine))


def test_scale_over_several_last_axes() -> None:
    scale = RANDOM.normal(1, 0.5, (3, WIDTH)).astype(np.float32)
    weights = {**WEIGHTS, "axes": np.array([-2, -1]), "scale": scale}
    types = {"inputs": "float[B,3,16] x", "outputs": "float[B,3,16] y"}
    graph = fusion.load(fusion.parse(expand(FORMS["pytorch"], 18), weights, opset=18, **types))
    assert fuse_layernorm(graph) == 1
    assert graph.nodes[0].attrs["axis"] == -2
    assert graph.nodes[0].inputs[2].shape == (3, WIDTH)
    (y,) = fusion.run(fusion.export(graph), x=X)
    rows, affine = X.reshape(2, -1), (scale.ravel(), np.tile(BIAS, 3))
    assert np.all(np.abs(y.reshape(2, -1) - exact(rows, *affine)) <= rounding_bound(rows, *affine))


@pytest.mark.parametrize(("shape", "rest"), [("B,3,16", [3, 1]), ("B,16", [1]), ("2,T,16", [3, 1])])
def test_statistics_reshaped_at_run_time(shape: str, rest: list[int]) -> None:
    """One dimension may be known by the count of elements only."""
    weights = {**WEIGHTS, "rest": np.array(rest)}
    types = {"inputs": f"float[{shape}] x", "outputs": f"float[{shape}] y"}
    original = fusion.parse(f"{BATCH} {expand(RESHAPED, 17)}", weights, **types)
    graph = fusion.load(original)
    assert fuse_layernorm(graph) == 1
    x = X if len(rest) == 2 else X[0]
    (y,) = fusion.run(fusion.export(graph), x=x)
    assert np.all(np.abs(y - exact(x)) <= rounding_bound(x))


def test_reshape_that_may_move_elements_is_not_read_as_a_copy() -> None:
    types = {"inputs": "float[B,T,16] x, int64[3] shape", "outputs": "float[?,?,16] y"}
    graph = fusion.load(fusion.parse(expand(RESHAPED, 17), WEIGHTS, **types))
    assert fuse_layernorm(graph) == 0


@pytest.mark.parametrize(("first", "last"), [("sizes", "one"), ("two", "sizes")])
def test_reshape_with_two_unknown_sizes_is_not_read_as_a_copy(first: str, last: str) -> None:
    body = "m = Mean0(x) z = Reshape(m, shape) d = Sub(x, z) p = Mul(d, d) v = Mean0(p) k = Reshape(v, shape)"
    body = expand(f"shape = Concat<axis=0>({first}, {last}) {body} e = Add(k, eps) s = Sqrt(e)", 17)
    weights = {**WEIGHTS, "one": np.array([1]), "two": np.array([2])}
    types = {"inputs": "float[?,?,16] x, int64[2] sizes", "outputs": "float[?,?,16] y"}
    graph = fusion.load(fusion.parse(f"{body} n = Div(d, s) {TAIL}", weights, **types))
    assert len(next(node for node in graph.nodes if node.op == "Reshape").outputs[0].shape) == 3
    assert fuse_layernorm(graph) == 0


def test_expand_that_may_broadcast_is_not_read_as_a_copy() -> None:
    body = expand("m = Mean(x) f = Expand(m, shape) d = Sub(x, f) p = Mul(d, d) v = Mean(p) e = Add(v, eps) "
                  f"s = Sqrt(e) n = Div(d, s) {TAIL}", 17)  # fmt: skip
    types = {"inputs": "float[B,T,16] x, int64[3] shape", "outputs": "float[?,?,16] y"}
    assert find_layernorm(fusion.load(fusion.parse(body, WEIGHTS, **types))) == 0


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_other_formulas_stay(form: str) -> None:
    weights = {**WEIGHTS, "off": np.float32(1 + 1e-5), "infinite": np.float32(np.inf)}
    body = expand(OTHER_FORMS[form], 17)
    graph = fusion.load(fusion.parse(body, weights, inputs="float[B,T,16] x, float[1] t"))
    before = fusion.operators(graph)
    assert fuse_layernorm(graph) == 0 == find_layernorm(graph)
    assert fusion.operators(graph) == before


@pytest.mark.parametrize("parameter", [(3, 1), (1, 1, 1, WIDTH)])
def test_affine_part_that_is_not_along_the_axes_stays_outside(parameter: tuple[int, ...]) -> None:
    weights = {**WEIGHTS, "scale": np.full(parameter, 2, np.float32)}
    types = {"inputs": "float[2,3,16] x", "outputs": "float[" + ("1," * (len(parameter) - 3)) + "2,3,16] y"}
    original = fusion.parse(expand(FORMS["pytorch"], 17), weights, **types)
    graph = fusion.load(original)
    assert fuse_layernorm(graph) == 1
    assert [node.op for node in graph.nodes] == ["LayerNormalization", "Mul", "Add"]
    (before,), (after,) = fusion.run(original, x=X), fusion.run(fusion.export(graph), x=X)
    assert np.all(np.abs(before - after) <= 2 * rounding_bound(X, 2))


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ({"inputs": "double[B,T,16] x", "outputs": "double[B,T,16] y"}, "double"),
        ({"inputs": "float[B,T,D] x", "outputs": "float[B,T,D] y"}, "unknown or 0"),
        ({"inputs": "float[B,T,0] x", "outputs": "float[B,T,0] y"}, "unknown or 0"),
    ],
)
def test_refusals_name_their_reason(
    types: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    dtype = np.float64 if "double" in types["inputs"] else np.float32
    weights = {name: array.astype(dtype) for name, array in WEIGHTS.items() if name != "axes"}
    body = f"{TWO_PASS} e = Add(v, eps) s = Sqrt(e) y = Div(d, s)"
    graph = fusion.load(fusion.parse(expand(body, 17), weights, **types))
    with caplog.at_level(logging.DEBUG, "transforms.fuse_layernorm"):
        assert fuse_layernorm(graph) == 0
    assert "'y' is not fused" in caplog.text
    assert reason in caplog.text


def test_old_opset_is_counted_but_not_changed(caplog: pytest.LogCaptureFixture) -> None:
    graph = fusion.load(model(FORMS["pytorch"], 16))
    with caplog.at_level(logging.DEBUG, "transforms.fuse_layernorm"):
        assert fuse_layernorm(graph) == 0
    assert "needs opset 17, the graph has 16" in caplog.text
    assert find_layernorm(graph) == 1
    assert convert_opset(graph, 20) == 1
    assert fuse_layernorm(graph) == 1


def test_results_that_are_used_elsewhere_stay() -> None:
    body = FORMS["pytorch"] + " other = Relu(d)"
    outputs = "float[B,T,16] y, float[B,T,1] v, float[B,T,16] other"
    original = model(body, outputs=outputs)
    graph = fusion.load(original)
    assert fuse_layernorm(graph) == 1
    assert fusion.operators(graph) == {
        "ReduceMean": 2, "Sub": 1, "Pow": 1, "LayerNormalization": 1, "Relu": 1,
    }  # fmt: skip
    assert fuse_layernorm(graph) == 0
    before, after = fusion.run(original, x=X), fusion.run(fusion.export(graph), x=X)
    np.testing.assert_array_equal(before[1], after[1])
    np.testing.assert_array_equal(before[2], after[2])
    assert np.all(np.abs(after[0] - exact(X)) <= rounding_bound(X))


def test_normalised_value_with_two_uses_is_computed_once() -> None:
    body = f"{FORMS['pytorch']} h = Mul(n, two) other = Add(h, bias)"
    original = model(body, outputs="float[B,T,16] y, float[B,T,16] other")
    graph = fusion.load(original)
    assert fuse_layernorm(graph) == 1
    assert fusion.operators(graph) == {"LayerNormalization": 1, "Mul": 2, "Add": 2}
    for result, scale in zip(fusion.run(fusion.export(graph), x=X), (SCALE, 2), strict=True):
        assert np.all(np.abs(result - exact(X, scale)) <= rounding_bound(X, scale))


def test_normalised_value_that_is_an_output_keeps_its_name() -> None:
    graph = fusion.load(model(FORMS["pytorch"], outputs="float[B,T,16] n, float[B,T,16] y"))
    assert fuse_layernorm(graph) == 1
    assert [node.op for node in graph.nodes] == ["LayerNormalization", "Mul", "Add"]
    n, y = fusion.run(fusion.export(graph), x=X)
    assert np.all(np.abs(n - exact(X, 1, 0)) <= rounding_bound(X, 1, 0))
    assert np.all(np.abs(y - exact(X)) <= rounding_bound(X))


def test_two_in_a_row_with_dynamic_shapes() -> None:
    body = FORMS["pytorch"].replace("y =", "out =").replace("(x", "(y")
    second = re.sub(r"\b([mdpvesng])\b", r"\g<1>2", body)
    graph = fusion.load(model(f"{FORMS['pytorch']} {second}", outputs="float[B,T,16] out"))
    assert fuse_layernorm(graph) == 2
    assert [node.op for node in graph.nodes] == ["LayerNormalization"] * 2
    fused = fusion.export(graph)
    for shape in ((1, 1, WIDTH), (4, 7, WIDTH), (0, 3, WIDTH)):
        (out,) = fusion.run(fused, x=np.ones(shape, np.float32))
        assert out.shape == shape


def test_last_axis_is_found_where_shapes_were_lost() -> None:
    """The size of the axis follows from the weight, although the rank after the Reshape is unknown."""
    head = "c = Reshape(a, shape) k = MatMul(c, w) x = Add(k, bias)"
    weights = {**WEIGHTS, "w": np.eye(WIDTH, dtype=np.float32)}
    types = {"inputs": "float[B,16] a, int64[R] shape", "outputs": "float[?,16] y"}
    graph = fusion.load(fusion.parse(f"{head} {expand(FORMS['pytorch'], 17)}", weights, **types))
    assert next(node for node in graph.nodes if node.op == "MatMul").outputs[0].shape is None
    assert fuse_layernorm(graph) == 1


def test_half_precision() -> None:
    """The float32 formula and one rounding to float16: relative 2^-11, subnormals in steps of 2^-24."""
    weights = {name: array if name == "axes" else array.astype(np.float16) for name, array in WEIGHTS.items()}
    types = {"inputs": "float16[B,T,16] x", "outputs": "float16[B,T,16] y"}
    graph = fusion.load(fusion.parse(expand(FORMS["pytorch"], 17), weights, **types))
    assert fuse_layernorm(graph) == 1
    assert {tensor.dtype for tensor in graph.nodes[0].inputs} == {np.dtype(np.float16)}
    x = X.astype(np.float16)
    (y,) = fusion.run(fusion.export(graph), x=x)
    affine = weights["scale"].astype(np.float64), weights["bias"].astype(np.float64)
    expected = exact(x, *affine)
    last_rounding = np.maximum(2.0**-11 * np.abs(expected), 2.0**-25)
    assert np.all(np.abs(y - expected) <= rounding_bound(x, *affine) + last_rounding)


def test_branches_with_captured_tensors() -> None:
    body = expand(FORMS["pytorch"], 17).replace("y = Add", "inner = Add")
    branches = f"then_branch = a () => (float[B,T,16] inner) {{ {body} }}, "
    branches += "else_branch = b () => (float[B,T,16] same) { same = Identity(x) }"
    original = fusion.parse(f"y = If(k)<{branches}>", WEIGHTS, inputs="float[B,T,16] x, bool k")
    graph = fusion.load(original)
    assert fuse_layernorm(graph) == 1
    assert [node.op for node in graph.nodes[0].attrs["then_branch"].nodes] == ["LayerNormalization"]
    fused = fusion.export(graph)
    (y,) = fusion.run(fused, x=X, k=np.array(True))
    assert np.all(np.abs(y - exact(X)) <= rounding_bound(X))
    np.testing.assert_array_equal(fusion.run(fused, x=X, k=np.array(False))[0], X)
