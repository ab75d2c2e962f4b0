"""Oracle: the output of the layer with a single weight of 1, whose mean square is what that weight's error
counts; by ONNX Runtime. Kernels of 1 x 1, so that no border sees fewer inputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from numpy.typing import NDArray

from ops.integers import weight_scale
from tests.helpers import plans
from tests.helpers.quantization import Given, random, scheme
from transforms.calibrate.calibrate import Calibration
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.range_statistics import RangeStats
from transforms.plan import quantization_plan
from transforms.plan.qparams import QParamsTable
from transforms.plan.quant_spec import QuantSite, QuantSpec
from transforms.plan.quantization_plan import (
    QuantizationPlan,
    importance,
    weighed_inputs,
    weighed_uses,
    weight_method,
)
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme import Scheme, preset

LAYERS = {
    "MatMul": ("(float[7,4] x) => (float[7,6] y) { y = MatMul(x, w) }", (7, 4), (4, 6), 1),
    "stack": ("(float[3,7,4] x) => (float[3,7,6] y) { y = MatMul(x, w) }", (3, 7, 4), (4, 6), 2),
    "weight first": ("(float[4,7] x) => (float[6,7] y) { y = MatMul(w, x) }", (4, 7), (6, 4), 0),
    "vector": ("(float[7,4] x) => (float[7] y) { y = MatMul(x, w) }", (7, 4), (4,), 1),
    "Gemm": ("(float[7,4] x) => (float[7,6] y) { y = Gemm(x, w) }", (7, 4), (4, 6), 1),
    "Gemm transposed": (
        "(float[4,7] x) => (float[7,6] y) { y = Gemm <transA = 1, transB = 1> (x, w) }", (4, 7), (6, 4), 0,
    ),
    "Conv": ("(float[2,4,3,3] x) => (float[2,6,3,3] y) { y = Conv(x, w) }", (2, 4, 3, 3), (6, 4, 1, 1), 1),
    "grouped Conv": (
        "(float[2,4,3,3] x) => (float[2,6,3,3] y) { y = Conv <group = 2> (x, w) }",
        (2, 4, 3, 3), (6, 2, 1, 1), 1,
    ),
    "depthwise Conv": (
        "(float[2,4,3,3] x) => (float[2,4,3,3] y) { y = Conv <group = 4> (x, w) }",
        (2, 4, 3, 3), (4, 1, 1, 1), 1,
    ),
    "ConvTranspose": (
        "(float[2,4,3,3] x) => (float[2,6,3,3] y) { y = ConvTranspose(x, w) }", (2, 4, 3, 3), (4, 6, 1, 1), 1,
    ),
    "grouped ConvTranspose": (
        "(float[2,4,3,3] x) => (float[2,6,3,3] y) { y = ConvTranspose <group = 2> (x, w) }",
        (2, 4, 3, 3), (4, 3, 1, 1), 1,
    ),
}  # fmt: skip
"""Text, shape of the input, shape of the weight, axis of the input's channels."""

WEIGHTED = scheme("A8W8", weight_method="WeightedMSE")


def planned(text: str, weights: plans.Weights, chosen: Scheme = WEIGHTED) -> QuantizationPlan:
    return QuantizationPlan(plans.graph(text, weights), chosen)


def mean_square(x: NDArray[np.float32], axis: int) -> NDArray[np.float64]:
    return np.square(x.astype(np.float64)).mean(tuple(i for i in range(x.ndim) if i != axis))


def probed(model: onnx.ModelProto, x: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the mean square of the output for each weight that is 1 while the others are 0."""
    data = _with_weight_as_input(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    result = np.empty(shape)
    for place in np.ndindex(shape):
        w = np.zeros(shape, np.float32)
        w[place] = 1
        y = session.run(None, {"x": x, "w": w})[0].astype(np.float64)
        result[place] = np.square(y).sum()
    return result


def _with_weight_as_input(model: onnx.ModelProto) -> onnx.ModelProto:
    (weight,) = model.graph.initializer
    declared = onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
    model.graph.input.append(declared)
    del model.graph.initializer[:]
    return model


@pytest.mark.parametrize("name", LAYERS)
def test_an_error_counts_as_what_it_does_to_the_output(name: str) -> None:
    text, shape_of_x, shape, axis = LAYERS[name]
    x = random(*shape_of_x) * np.arange(1, 5).reshape(
        [-1 if i == axis else 1 for i in range(len(shape_of_x))]
    )
    x = x.astype(np.float32)
    plan = planned(text, {"w": shape})
    assert weighed_inputs(plan) == [("x", axis)]
    weight = next(t for node in plan.graph.nodes for t in node.inputs if t.name == "w")
    found = np.broadcast_to(
        importance(weighed_uses(plan), weight, {("x", axis): mean_square(x, axis)}), shape
    )
    expected = probed(plans.model(text, {"w": shape}), x, shape)
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), rtol=1e-6)
    assert found.max() > 3 * found.min()  # so that a wrong axis shows


def test_a_shared_weight_takes_the_sum() -> None:
    text = """(float[2,4] a, float[2,4] b) => (float[2,4] y, float[2,4] z) {
        y = MatMul(a, w) z = Gemm <transB = 1> (b, w) }"""
    plan = planned(text, {"w": (4, 4)})
    assert weighed_inputs(plan) == [("a", 1), ("b", 1)]
    weight = plan.graph.nodes[0].inputs[1]
    first, second = np.arange(1.0, 5), np.arange(5.0, 9)
    found = importance(weighed_uses(plan), weight, {("a", 1): first, ("b", 1): second})
    assert found is not None and np.array_equal(found, first[:, None] + second[None])
    assert np.array_equal(importance(weighed_uses(plan), weight, {("b", 1): second}), second[None])  # type: ignore[arg-type]
    assert importance(weighed_uses(plan), weight, {}) is None


def test_the_uses_of_a_plan_are_walked_as_often_for_many_weights_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Oracle: the number of walks; one for every weight makes the time quadratic."""
    walks: list[QuantizationPlan] = []
    walk = quantization_plan.each_use

    def counted(plan: QuantizationPlan) -> Iterator[tuple[gs.Node, int, QuantSite]]:
        walks.append(plan)
        return walk(plan)

    monkeypatch.setattr(quantization_plan, "each_use", counted)

    def walked(layers: int) -> int:
        nodes = " ".join(f"x{i + 1} = MatMul(x{i}, w{i})" for i in range(layers))
        text = f"(float[2,4] x0) => (float[2,4] x{layers}) {{ {nodes} }}"
        graph = plans.graph(text, {f"w{i}": (4, 4) for i in range(layers)})
        plan = QuantizationPlan(graph, WEIGHTED.with_(per_channel=False))
        observed = {f"x{i}": RangeStats(-1, 1) for i in range(layers + 1)}
        walks.clear()
        QParamsTable(plan, Calibration(CalibrationOptions(), observed))
        return len(walks)

    assert walked(12) == walked(2)


TWO_AXES = {
    "Conv and MatMul": (
        """(float[2,4,3,6] x) => (float[2,6,3,6] y, float[2,4,3,5] z) { y = Conv(x, v) z = MatMul(x, w) }""",
        (2, 4, 3, 6), {"v": ((6, 4, 1, 1), 1), "w": ((6, 5), 3)},
    ),
    "Conv and MatMul of one size": (
        """(float[2,4,4,4] x) => (float[2,6,4,4] y, float[2,4,4,5] z) { y = Conv(x, v) z = MatMul(x, w) }""",
        (2, 4, 4, 4), {"v": ((6, 4, 1, 1), 1), "w": ((4, 5), 3)},
    ),
    "Gemm with and without transA": (
        """(float[4,4] x) => (float[4,6] y, float[4,5] z) { y = Gemm <transA = 1> (x, v) z = Gemm(x, w) }""",
        (4, 4), {"v": ((4, 6), 0), "w": ((4, 5), 1)},
    ),
    "MatMul from both sides": (
        """(float[7,4] x) => (float[7,6] y, float[5,4] z) { y = MatMul(x, v) z = MatMul(w, x) }""",
        (7, 4), {"v": ((4, 6), 1), "w": ((5, 7), 0)},
    ),
}  # fmt: skip
"""Text, shape of the input, shape and axis of what each weight is multiplied with."""


@pytest.mark.parametrize("name", TWO_AXES)
def test_a_tensor_that_is_read_along_two_axes(name: str) -> None:
    """Oracle: the mean squares by NumPy along the axis of each weight alone."""
    text, shape, weights = TWO_AXES[name]
    x = random(*shape)
    for axis in {axis for _, axis in weights.values()}:
        x *= 3.0 ** np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    graph = plans.graph(text, {name: shape for name, (shape, _) in weights.items()})
    plan = QuantizationPlan(graph, WEIGHTED.with_(per_channel=False))
    assert weighed_inputs(plan) == [("x", axis) for _, axis in weights.values()]
    calibration = calibrate_plan(plan, CalibrationData([{"x": x.astype(np.float32)}]))
    assert calibration is not None
    squares = calibration.mean_squares(weighed_inputs(plan))
    for node in plan.graph.nodes:
        (index,) = (i for i, tensor in enumerate(node.inputs) if isinstance(tensor, gs.Constant))
        weight = node.inputs[index]
        shape, axis = weights[weight.name]
        counts = np.asarray(importance(weighed_uses(plan), weight, squares))
        np.testing.assert_allclose(counts.reshape(-1), mean_square(x.astype(np.float32), axis), rtol=1e-6)
        (step,) = (one.steps[-1] for one in plan.quantizations if one.tensor is weight)
        scale, _ = QParamsTable(plan, calibration).of(weight, step)
        assert np.array_equal(scale, weight_scale(weight.values, "int8", method="MSE", importance=counts))


def test_a_remembered_scale_is_of_the_same_axis() -> None:
    """One large weight in two plans, whose rows and then whose columns are what is summed over."""
    weight, chosen = random(160, 160), WEIGHTED.with_(per_channel=False)
    weight[:4] *= 3  # what a few rows hold is what a scale can give way to
    memory, scales = WeightMemory(), []
    for node in ("MatMul(x, w)", "Gemm <transB = 1> (x, w)"):
        plan = planned(f"(float[7,160] x) => (float[7,160] y) {{ y = {node} }}", {"w": weight}, chosen)
        tensor = plan.graph.nodes[0].inputs[1]
        tensor.values = weight  # as copies of one graph share it
        given = Given({"x": (-1, 1), "y": (-1, 1)}, {("x", 1): np.exp2(-np.arange(160) / 4)})
        step = next(one.steps[-1] for one in plan.quantizations if one.tensor is tensor)
        scales += [QParamsTable(plan, given, one).of(tensor, step)[0] for one in (memory, None)]
    assert scales[0] == scales[1] != scales[3] == scales[2]


@pytest.mark.parametrize(
    "chosen",
    (
        scheme("A8W8"),
        scheme("A8W8", weight_method="MSE"),
        scheme("MX9", weight_method="WeightedMSE"),
        scheme("BF16", weight_method="WeightedMSE"),
        scheme("U8S8", weight="uint8", weight_method="WeightedMSE"),
        preset("A8W8").with_(per_channel=True),
    ),
)
def test_other_weights_need_nothing(chosen: Scheme) -> None:
    plan = planned("(float[7,4] x) => (float[7,6] y) { y = MatMul(x, w) }", {"w": (4, 6)}, chosen)
    assert plan.quantizations
    assert weighed_inputs(plan) == []


def test_what_no_calibration_sees_is_left_out() -> None:
    text = """(float[2,4] x, bool c) => (float[2,4] y) {
        y = If (c) <then_branch = t () => (float[2,4] p) { a = Neg(x) p = MatMul(a, w) },
                    else_branch = e () => (float[2,4] q) { q = MatMul(x, w) }> }"""
    chosen = scheme("BFP16", weight="int8", weight_method="WeightedMSE")
    assert weighed_inputs(planned(text, {"w": (4, 4)}, chosen)) == [("x", 1)]


@pytest.mark.parametrize(
    ("format", "axis", "expected"),
    (
        ("int8", None, "WeightedMSE"),
        ("int8", 1, "MinMax"),
        ("int16", 1, "MinMax"),
        ("int4", 1, "MSE"),
        ("int4", None, "WeightedMSE"),
    ),
)
def test_which_method_is_chosen(format: str, axis: int | None, expected: str) -> None:
    automatic = preset("A8W8")
    step = QuantSpec(automatic.with_(weight=format).format(format), axis)  # type: ignore[arg-type]
    assert weight_method(automatic, step) == expected
    for method in ("MinMax", "MSE", "WeightedMSE"):
        assert weight_method(automatic.with_(weight_method=method), step) == method


def test_stored_data_of_a_grouped_conv_with_filters_that_are_fed() -> None:
    """The filters' mean squares, along their axis of the sum, count for the channels of every group."""
    text = "(float[6,2,1,1] x) => (float[3,6,3,3] y) { y = Conv <group = 2> (w, x) }"
    plan = planned(text, {"w": (3, 4, 3, 3)})
    assert weighed_inputs(plan) == [("x", 1)]
    weight = plan.graph.nodes[0].inputs[0]
    found = importance(weighed_uses(plan), weight, {("x", 1): np.array([1.0, 2.0])})
    assert found is not None and found.shape == (1, 4, 1, 1)
    assert found.reshape(-1).tolist() == [1.0, 2.0, 1.0, 2.0]
