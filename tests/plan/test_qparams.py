"""Oracles: the formulas of the documentation in NumPy's float32, written out in each test."""

from __future__ import annotations

import numpy as np
import pytest

import ops
from tests.helpers import plans
from tests.helpers.quantization import LIMITS, Given, random, scheme
from transforms.align_concat import align_concat
from transforms.calibrate.calibrate import Calibration, CalibrationOptions
from transforms.plan.qparams import QParamsTable
from transforms.plan.quant_spec import QuantSite
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import Scheme

PRODUCT = "(float[2,4] x) => (float[2,6] y) { y = MatMul(x, w) }"
WITH_BIAS = "(float[2,4] x) => (float[2,6] y) { y = Gemm(x, w, b) }"


def planned(text: str, weights: plans.Weights, chosen: Scheme) -> QuantizationPlan:
    return QuantizationPlan(plans.graph(text, weights), chosen)


def of(parameters: QParamsTable, quantization: QuantSite) -> tuple[np.ndarray, np.ndarray]:
    return parameters.of(quantization.tensor, quantization.steps[-1])


@pytest.mark.parametrize("symmetric", (False, True))
@pytest.mark.parametrize("format", ("int8", "uint8", "int16", "uint16"))
def test_activations(format: str, symmetric: bool) -> None:
    chosen = scheme(Scheme(format, "int8", activation_symmetric=symmetric))
    plan = planned(PRODUCT, {"w": (4, 6)}, chosen)
    parameters = QParamsTable(plan, Given({"x": (-1, 3), "y": (2, 5)}))
    lowest, highest = LIMITS[format]
    for place, low, high in (("y.0", -1, 3), ("=y", 0, 5)):
        scale, zero_point = of(parameters, plans.at(plan, place))
        if symmetric:
            middle = 0 if lowest else (highest + 1) // 2
            expected = np.float32(max(-low, high) / (highest - middle)), middle
        else:
            step = (high - low) / (highest - lowest)
            expected = np.float32(step), round(lowest - low / step)
        assert (scale, zero_point) == expected
        assert (scale.dtype, zero_point.dtype) == (np.float32, np.dtype(format))


def test_what_has_no_range_is_an_error_and_names_the_tensor() -> None:
    plan = planned(PRODUCT, {"w": (4, 6)}, scheme("A8W8"))
    with pytest.raises(ValueError, match=r"^tensor 'x' needs a range for int8: calibrate first$"):
        QParamsTable(plan, None)
    with pytest.raises(ValueError, match=r"^tensor 'x' has no range: tensor 'x' was not calibrated$"):
        QParamsTable(plan, Calibration(CalibrationOptions(), {}))


def test_blocks_and_float_types_need_nothing() -> None:
    for name in ("MX9", "BF16", "FP16", "BF16_BFP16"):
        plan = planned(WITH_BIAS, {"w": (4, 6), "b": (6,)}, scheme(name))
        assert plan.quantizations
        assert QParamsTable(plan, None)._chosen == {}


@pytest.mark.parametrize("per_channel", (False, True))
@pytest.mark.parametrize("format", ("int4", "int8", "int16"))
def test_a_signed_weight_is_symmetric(format: str, per_channel: bool) -> None:
    w = random(4, 6)
    plan = planned(PRODUCT, {"w": w}, scheme("A8W8", weight=format, per_channel=per_channel))
    scale, zero_point = of(QParamsTable(plan, Given({"x": (-1, 1), "y": (-1, 1)})), plans.at(plan, "y.1"))
    expected = np.abs(w).max(0 if per_channel else None) / np.float32(LIMITS[format][1])
    assert np.array_equal(scale, expected) and not zero_point.astype(int).any()
    assert zero_point.shape == scale.shape == ((6,) if per_channel else ())


@pytest.mark.parametrize("per_channel", (False, True))
def test_an_unsigned_weight_covers_its_range(per_channel: bool) -> None:
    w = random(4, 6) + 2
    w[:, 0] = [1, 2, 3, 4]  # of one sign: zero has to be on the grid all the same
    plan = planned(PRODUCT, {"w": w}, scheme("U8S8", weight="uint8", per_channel=per_channel))
    scale, zero_point = of(QParamsTable(plan, Given({"x": (-1, 1), "y": (-1, 1)})), plans.at(plan, "y.1"))
    axis = 0 if per_channel else None
    low, high = np.minimum(w.min(axis), 0).astype(float), np.maximum(w.max(axis), 0).astype(float)
    assert np.array_equal(scale, ((high - low) / 255).astype(np.float32))
    assert np.array_equal(zero_point, np.rint(-low / ((high - low) / 255)))


def test_one_weight_has_a_scale_for_each_way_of_reading_it() -> None:
    text = """(float[4,4] x) => (float[4,4] y, float[4,4] z) {
        y = MatMul(x, w) z = Gemm <transB = 1> (x, w) }"""
    w = random(4, 4)
    plan = planned(text, {"w": w}, scheme("A8W8", per_channel=True))
    parameters = QParamsTable(plan, Given(dict.fromkeys("xyz", (-1.0, 1.0))))
    for place, axis in (("y.1", 0), ("z.1", 1)):
        scale, _ = of(parameters, plans.at(plan, place))
        assert np.array_equal(scale, np.abs(w).max(axis) / np.float32(127))


@pytest.mark.parametrize("method", ("MinMax", "MSE"))
def test_the_method_of_the_scheme_is_used_for_weights(method: str) -> None:
    w = np.concatenate([random(4, 60), [[8], [0], [0], [0]]], 1).astype(np.float32)
    text = "(float[2,4] x) => (float[2,61] y) { y = MatMul(x, w) }"
    plan = planned(text, {"w": w}, scheme(Scheme("int8", "int4"), weight_method=method))
    scale, _ = of(QParamsTable(plan, Given({"x": (-1, 1), "y": (-1, 1)})), plans.at(plan, "y.1"))
    assert np.array_equal(scale, ops.integers.weight_scale(w, "int4", method=method))
    assert (scale == np.float32(8) / np.float32(7)) is np.bool_(method == "MinMax")


def test_weighted_errors_choose_a_scale_for_the_inputs_that_matter() -> None:
    """One input is a thousand times as large as the others: only its weights have to be precise."""
    w = random(4, 60)
    w[0] /= 8
    text = "(float[2,4] x) => (float[2,60] y) { y = MatMul(x, w) }"
    chosen = scheme(Scheme("int8", "int4"), weight_method="WeightedMSE")
    plan = planned(text, {"w": w}, chosen)
    ranges = {"x": (-1.0, 1.0), "y": (-1.0, 1.0)}
    squares = np.array([1e6, 1, 1, 1])
    scales = [
        float(of(QParamsTable(plan, Given(ranges, given)), plans.at(plan, "y.1"))[0])
        for given in ({("x", 1): squares}, {("x", 1): np.ones(4)}, {})
    ]
    assert scales[0] == ops.integers.weight_scale(w, "int4", method="MSE", importance=squares[:, None])
    assert scales[0] < scales[1] == scales[2] == ops.integers.weight_scale(w, "int4", method="MSE")


def test_tensors_with_one_range_have_the_hull_of_theirs() -> None:
    text = """(float[2,4] x) => (float[2,8] y) {
        a = MatMul(x, v) b = MatMul(x, w) c = Concat <axis = 1> (a, b) y = MatMul(c, u) }"""
    weights: plans.Weights = {"v": (4, 4), "w": (4, 4), "u": (8, 8)}
    ranges = {"x": (-1, 1), "a": (-3, 1), "b": (-1, 2), "c": (-2, 5), "y": (-1, 1)}
    for aligned in (False, True):
        plan = planned(text, weights, scheme("U8S8"))
        assert not aligned or align_concat(plan)
        parameters = QParamsTable(plan, Given(ranges))
        found = [of(parameters, plans.at(plan, place)) for place in ("c.0", "c.1", "y.0")]
        ends = [(-3, 5)] * 3 if aligned else [(-3, 1), (-1, 2), (-2, 5)]
        for (scale, zero_point), (low, high) in zip(found, ends, strict=True):
            assert scale == np.float32((high - low) / 255)
            assert zero_point == round(-low / ((high - low) / 255))


def test_a_constant_brings_its_own_range() -> None:
    text = "(float[2,4] x) => (float[2,4] y) { a = MatMul(x, w) y = Mul(a, k) }"
    weights: plans.Weights = {"w": (4, 4), "k": np.array([1, -5, 2, 3], np.float32)}
    plan = planned(text, weights, scheme("A8W8"))
    parameters = QParamsTable(plan, Given({"x": (-1, 1), "a": (-1, 1), "y": (-1, 1)}))
    assert of(parameters, plans.at(plan, "y.1"))[0] == np.float32(5 / 127)


@pytest.mark.parametrize("per_channel", (False, True))
def test_a_bias_has_the_scale_of_the_product(per_channel: bool) -> None:
    w = random(4, 6)
    plan = planned(WITH_BIAS, {"w": w, "b": (6,)}, scheme("A8W8", per_channel=per_channel))
    parameters = QParamsTable(plan, Given({"x": (-3, 2), "y": (-1, 1)}))
    scale, zero_point = parameters.of_bias(plan.graph.nodes[0])
    step = np.abs(w).max(0 if per_channel else None) / np.float32(127)
    assert np.array_equal(scale, np.float32(3 / 127) * step) and scale.dtype == np.float32
    assert zero_point.shape == scale.shape and zero_point.dtype == np.int32 and not zero_point.any()


def test_a_bias_that_fits_widens_nothing() -> None:
    """The limit is approached from below: 2^31 steps of 2^-21 are 1024."""
    w = np.full((4, 6), 127 * 2.0**-11, np.float32)
    ranges = {"x": (0.0, 127 * 2.0**-10), "y": (-1.0, 1.0)}
    for largest, widened in ((1023.9, False), (1024.0, True)):
        weights: plans.Weights = {"w": w, "b": np.full(6, largest, np.float32)}
        plan = planned(WITH_BIAS, weights, scheme("A8W8"))
        parameters = QParamsTable(plan, Given(ranges))
        scale, _ = of(parameters, plans.at(plan, "y.1"))
        assert bool(scale > 2.0**-11) is widened and scale < 1.001 * 2.0**-11
        bias, _ = parameters.of_bias(plan.graph.nodes[0])
        assert np.rint(np.float32(largest) / bias) < 2**31


def test_a_weight_as_first_operand_is_the_one_that_is_widened() -> None:
    text = "(float[4,2] x) => (float[6,2] y) { y = Gemm(w, x, b) }"
    weights: plans.Weights = {"w": random(6, 4) / 64, "b": np.full(2, 1e6, np.float32)}
    plan = planned(text, weights, scheme("A8W8"))
    parameters = QParamsTable(plan, Given({"x": (-1e-3, 1e-3), "y": (-1, 1)}))
    assert of(parameters, plans.at(plan, "y.1"))[0] == np.float32(1e-3 / 127)
    assert of(parameters, plans.at(plan, "y.0"))[0] > 50
    assert np.rint(np.float32(1e6) / parameters.of_bias(plan.graph.nodes[0])[0]) < 2**31


@pytest.mark.parametrize("per_channel", (False, True))
def test_a_bias_keeps_its_steps_where_the_input_is_always_zero(per_channel: bool) -> None:
    """A range of 0 to 0 leaves the scale free; 1 would round the bias to steps of the weight's scale."""
    b = np.array([1.8, -0.7, 0.01, 0.3, 0.9, -1.1], np.float32)
    plan = planned(WITH_BIAS, {"w": (4, 6), "b": b}, scheme("A8W8", per_channel=per_channel))
    parameters = QParamsTable(plan, Given({"x": (0, 0), "y": (-2, 2)}))
    (node,) = (node for node in plan.graph.nodes if node.op == "Gemm")
    scale, _ = parameters.of_bias(node)
    assert np.abs(np.round(b / scale) * scale - b).max() <= 1.8 / 2**15
    assert (np.abs(b / scale) < 2**31).all()


@pytest.mark.parametrize("per_channel", (False, True))
def test_a_bias_keeps_its_steps_where_weights_are_zero(per_channel: bool) -> None:
    """Pruned channels, or a pruned layer: their weights decide no scale, their biases are all they add."""
    b = np.array([1.8, -0.7, 0.01, 0, 0.9, -1.1], np.float32)
    w = random(4, 6)
    w[:, 1:4] = 0
    plan = planned(
        WITH_BIAS, {"w": w if per_channel else w * 0, "b": b}, scheme("A8W8", per_channel=per_channel)
    )
    parameters = QParamsTable(plan, Given({"x": (-1, 3), "y": (-2, 2)}))
    (node,) = (node for node in plan.graph.nodes if node.op == "Gemm")
    scale, _ = parameters.of_bias(node)
    error = np.abs(np.round(b / scale) * scale - b)
    assert (error <= (np.abs(b) if per_channel else 1.8) / 2**15)[1:4].all()
    assert (np.abs(b / scale) < 2**31).all()
