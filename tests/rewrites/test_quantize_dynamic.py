"""Products that round their inputs at run time.

Oracle: the sums of integers in int64, by NumPy, on the grid that ONNX defines for DynamicQuantizeLinear, or
of rows divided by their largest magnitudes; the float32 product of the scales is taken as the nodes take it,
so results are equal bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from transforms.model import graph_proto
from transforms.quantize_dynamic import quantize_dynamic

K, N = 24, 10
RANDOM = np.random.default_rng(0)
SCALES = RANDOM.uniform(0.01, 0.02, N).astype(np.float32)
WEIGHTS = {
    "int8": RANDOM.integers(-127, 128, (K, N)).astype(np.int8),
    "uint8": RANDOM.integers(0, 256, (K, N)).astype(np.uint8),
}
ZEROS = {"int8": np.zeros(N, np.int8), "uint8": RANDOM.integers(100, 156, N).astype(np.uint8)}
BIAS = RANDOM.standard_normal(N).astype(np.float32)
INPUTS = {
    "rows": RANDOM.standard_normal((5, K)),
    "one row": RANDOM.standard_normal((1, K)),
    "no rows": np.zeros((0, K)),
    "all equal": np.full((3, K), 0.7),
    "all zero": np.zeros((3, K)),
    "negative": -RANDOM.random((3, K)) - 1,
    "positive": RANDOM.random((3, K)) + 1,
    "large": 1e30 * RANDOM.standard_normal((3, K)),
    "subnormal": 1e-42 * RANDOM.standard_normal((3, K)),
    "stack": RANDOM.standard_normal((2, 3, K)),
}


def product(
    op: str = "MatMul",
    *,
    weight: str = "int8",
    shape: tuple[object, ...] = ("rows", K),
    opset: int = 20,
    **attrs: float,
) -> onnx.ModelProto:
    """A product with a dequantized weight, with a scale for each output."""
    turned = bool(attrs.get("transB", 0))
    stored, zero = WEIGHTS[weight], ZEROS[weight]
    arrays = {"W": stored.T if turned else stored, "s": SCALES, "z": zero, "bias": BIAS}
    inputs = ["x", "w", "bias"] if op == "Gemm" else ["x", "w"]
    nodes = [
        helper.make_node("DequantizeLinear", ["W", "s", "z"], ["w"], axis=0 if turned else 1),
        helper.make_node(op, inputs, ["y"], name="product", **attrs),
    ]
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(a.copy(), name) for name, a in arrays.items() if name in used]
    x = helper.make_tensor_value_info("x", 1, shape)
    y = helper.make_tensor_value_info("y", 1, [*shape[:-1], N])
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def rewritten(model: onnx.ModelProto, count: int = 1, ranges: str = "tensor") -> onnx.ModelProto:
    graph = graph_proto.import_model(model)
    assert quantize_dynamic(graph, ranges=ranges) == count
    assert quantize_dynamic(graph, ranges=ranges) == 0
    made = graph_proto.export_model(graph)
    onnx.checker.check_model(made, full_check=True)
    return made


def outputs(
    model: onnx.ModelProto, x: NDArray[np.float32], *, optimized: bool = False
) -> NDArray[np.float32]:
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def expected(x: NDArray[np.float32], weight: str = "int8", alpha: float = 1) -> NDArray[np.float32]:
    """The grid has zero in it; a tensor of zeros alone, or of nothing, has any scale."""
    low, high = (np.float32(f(x, initial=0)) for f in (np.min, np.max))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    numbers = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64) - int(zero)
    sums = numbers @ (WEIGHTS[weight].astype(np.int64) - ZEROS[weight])
    return np.asarray(sums.astype(np.float32) * (scale * (SCALES * np.float32(alpha))))


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("name", INPUTS)
def test_products_are_those_of_integers(name: str, weight: str) -> None:
    x = INPUTS[name].astype(np.float32)
    shape = ("b", "rows", K) if x.ndim > 2 else ("rows", K)
    made = rewritten(product(weight=weight, shape=shape))
    np.testing.assert_array_equal(outputs(made, x), expected(x, weight))


@pytest.mark.parametrize("name", INPUTS)
def test_the_runtime_s_own_operator_makes_the_same(name: str) -> None:
    """DynamicQuantizeMatMul multiplies the sums by the same scales, in another order: half an ulp each."""
    x = INPUTS[name].astype(np.float32)
    made = rewritten(product(shape=("b", "rows", K) if x.ndim > 2 else ("rows", K)))
    np.testing.assert_allclose(outputs(made, x, optimized=True), outputs(made, x), rtol=2e-7, atol=0)


def test_the_runtime_knows_the_form(tmp_path: Path) -> None:
    """One product becomes DynamicQuantizeMatMul, two of one input share what is rounded."""
    model = rewritten(product())
    assert "DynamicQuantizeMatMul" in optimized_ops(model, tmp_path / "one.onnx")
    shared = product()
    shared.graph.initializer.append(numpy_helper.from_array(WEIGHTS["int8"][::-1].copy(), "V"))
    shared.graph.node.append(helper.make_node("DequantizeLinear", ["V", "s"], ["v"], axis=1))
    shared.graph.node.append(helper.make_node("MatMul", ["x", "v"], ["y2"], name="second"))
    shared.graph.output.append(helper.make_tensor_value_info("y2", 1, ["rows", N]))
    found = optimized_ops(rewritten(shared, 2), tmp_path / "two.onnx")
    assert (found["MatMulIntegerToFloat"], found["DynamicQuantizeLinear"]) == (2, 1)


def optimized_ops(model: onnx.ModelProto, path: Path) -> Counter[str]:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_no_number_is_lost_beside_infinities_but_nan_is() -> None:
    """As ONNX Runtime has it: the range of an infinity is one; a NaN is in no range, and becomes a number."""
    x = INPUTS["rows"].astype(np.float32)
    made = rewritten(product())
    x[0, 0] = np.inf
    for optimized in (False, True):
        assert not np.isfinite(outputs(made, x, optimized=optimized)).any()
    x[0, 0] = np.nan
    for optimized in (False, True):
        assert np.isfinite(outputs(made, x, optimized=optimized)).all()


def expected_rows(
    x: NDArray[np.float32],
    weight: str = "int8",
    alpha: float = 1,
    zero: int = 128,
    least: np.float32 | None = None,
) -> NDArray[np.float32]:
    """Rows divided by their largest numbers, which are 127 steps, or more if few numbers are negative."""
    numbers = np.abs(x) if zero == 128 else x
    factor = np.maximum(numbers.max(-1, keepdims=True, initial=0), least or np.finfo(np.float32).tiny)
    step = np.float32(1 / (255 - zero))
    numbers = np.clip(np.rint(x / factor / step) + zero, 0, 255).astype(np.int64) - zero
    sums = numbers @ (WEIGHTS[weight].astype(np.int64) - ZEROS[weight])
    scales = step * (SCALES * np.float32(alpha))
    return np.asarray(sums.astype(np.float32) * scales * factor)


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("name", INPUTS)
def test_rows_have_ranges_of_their_own(name: str, weight: str, opset: int) -> None:
    """The runtime multiplies integers; without its optimization, floats, whose sums are rounded."""
    x = INPUTS[name].astype(np.float32)
    shape = ("b", "rows", K) if x.ndim > 2 else ("rows", K)
    made = rewritten(product(weight=weight, shape=shape, opset=opset), ranges="row")
    found, exact = outputs(made, x, optimized=True), expected_rows(x, weight)
    np.testing.assert_array_equal(found, exact)
    near = np.abs(exact).max(-1, keepdims=True, initial=0) * 2e-6
    assert (np.abs(outputs(made, x) - exact) <= near).all()


def test_the_runtime_multiplies_rows_in_integers(tmp_path: Path) -> None:
    """Two products of one tensor share what is rounded."""
    shared = product()
    shared.graph.initializer.append(numpy_helper.from_array(WEIGHTS["int8"][::-1].copy(), "V"))
    shared.graph.node.append(helper.make_node("DequantizeLinear", ["V", "s"], ["v"], axis=1))
    shared.graph.node.append(helper.make_node("MatMul", ["x", "v"], ["y2"], name="second"))
    shared.graph.output.append(helper.make_tensor_value_info("y2", 1, ["rows", N]))
    found = optimized_ops(rewritten(shared, 2, "row"), tmp_path / "two.onnx")
    assert (found["MatMulIntegerToFloat"], found["QuantizeLinear"], found["ReduceMax"]) == (2, 1, 1)
    assert not found["MatMul"] and not found["DequantizeLinear"]


def test_a_row_is_the_same_alone_and_in_a_batch_and_infinities_stay_in_theirs() -> None:
    x = INPUTS["stack"].astype(np.float32)
    made = rewritten(product(shape=("b", "rows", K)), ranges="row")
    together = outputs(made, x, optimized=True)
    for place in np.ndindex(x.shape[:-1]):
        alone = outputs(made, x[place][None, None], optimized=True)
        np.testing.assert_array_equal(alone[0, 0], together[place])
    for special in (np.inf, np.nan):  # a NaN becomes a number, as the runtime's largest one leaves it out
        x[0, 1, 3] = special
        found = outputs(made, x, optimized=True)
        assert np.isnan(special) or not np.isfinite(found[0, 1]).any()
        found[0, 1] = together[0, 1]
        np.testing.assert_array_equal(found, together)


def test_a_single_row_is_a_tensor() -> None:
    one = rewritten(product(shape=(1, 1, K)), ranges="row")
    assert one.graph.node[0].op_type == "DynamicQuantizeLinear"


@pytest.mark.parametrize(("op", "zero", "low"), [("Relu", 0, 0), ("Gelu", 48, -0.1701), ("Elu", 128, None)])
def test_rows_of_few_or_no_negative_numbers_have_finer_steps(op: str, zero: int, low: float | None) -> None:
    """The least number of all rows gives the range of those whose largest one is small."""
    model = product()
    model.graph.node.insert(1, helper.make_node(op, ["x"], ["above"]))
    model.graph.node[2].input[0] = "above"
    model.graph.output.append(helper.make_tensor_value_info("above", 1, ["rows", K]))
    x = np.concatenate([INPUTS["rows"], 0.01 * INPUTS["rows"], -abs(INPUTS["rows"])]).astype(np.float32)
    made = rewritten(model, ranges="row")
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found, above = session.run(None, {"x": x})
    least = None if low is None else np.float32(-low * (255 - zero) / max(zero, 1))
    np.testing.assert_array_equal(found, expected_rows(above, zero=zero, least=least))
    assert ("Abs" in [node.op_type for node in made.graph.node]) == (zero == 128)


@pytest.mark.parametrize("ranges", ["row", "tensor"])
@pytest.mark.parametrize("attrs", [{}, {"alpha": 2.0}, {"transB": 1, "alpha": 0.5, "beta": 0.25}])
def test_a_gemm_keeps_its_factors_and_bias(attrs: dict[str, float], ranges: str) -> None:
    x = INPUTS["rows"].astype(np.float32)
    made = rewritten(product("Gemm", **attrs), ranges=ranges)
    added, alpha = BIAS * np.float32(attrs.get("beta", 1)), attrs.get("alpha", 1)
    exact = expected_rows(x, alpha=alpha) if ranges == "row" else expected(x, alpha=alpha)
    np.testing.assert_array_equal(outputs(made, x, optimized=ranges == "row"), exact + added)
    assert [node.op_type for node in made.graph.node][-1] == "Add"


@pytest.mark.parametrize(("ranges", "op"), [("row", "MatMul"), ("tensor", "MatMulInteger")])
def test_the_layer_keeps_its_name_and_the_weight_is_stored_once(ranges: str, op: str) -> None:
    made = rewritten(product(), ranges=ranges)
    [layer] = [node for node in made.graph.node if node.op_type == op]
    assert layer.name == "product"
    assert [list(one.dims) for one in made.graph.initializer].count([K, N]) == 1


def test_unknown_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ranges 'rows' is unknown.*'row'"):
        quantize_dynamic(graph_proto.import_model(product()), ranges="rows")


def _blocks(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("block_size", 8))


def _along_the_sum(model: onnx.ModelProto) -> None:
    node = model.graph.node[0]
    del node.attribute[:], node.input[2:]
    node.attribute.append(helper.make_attribute("axis", 0))
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones(K, np.float32), "s"))


def _vector(model: onnx.ModelProto) -> None:
    del model.graph.input[0].type.tensor_type.shape.dim[0]
    del model.graph.output[0].type.tensor_type.shape.dim[0]


def _scale_given(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("s", 1, [N]))
    del model.graph.initializer[1]


@pytest.mark.parametrize("change", [_blocks, _along_the_sum, _vector, _scale_given])
def test_other_products_stay(change: Callable[[onnx.ModelProto], None]) -> None:
    model = product()
    change(model)
    before = model.SerializeToString()
    graph = graph_proto.import_model(model)
    assert quantize_dynamic(graph) == 0
    assert Counter(node.op for node in graph.nodes) == {"DequantizeLinear": 1, "MatMul": 1}
    assert model.SerializeToString() == before


def test_excluded_and_integer_inputs_stay() -> None:
    graph = graph_proto.import_model(product())
    assert quantize_dynamic(graph, exclude=["product"]) == 0
    static = product()
    grid = [numpy_helper.from_array(np.float32(0.1), "xs"), numpy_helper.from_array(np.uint8(128), "xz")]
    static.graph.initializer.extend(grid)
    static.graph.node[1].input[0] = "xd"
    static.graph.node.insert(0, helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]))
    static.graph.node.insert(0, helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]))
    assert quantize_dynamic(graph_proto.import_model(static)) == 0
