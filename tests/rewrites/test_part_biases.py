"""Masks in biases. Oracle: the float model on the numbers that mean something, in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray

from tests.helpers import corpus
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.record import Record
from transforms.model.read_model import ModelError
from transforms.part_biases import part_biases
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.runtime_workarounds import leave_out_biases
from transforms.scheme import Scheme, preset

RANDOM = np.random.default_rng(3)
INF = float("inf")
LOWEST = float(np.finfo(np.float32).min)

GEMM = "(float[4,16] x) => (float[A,B] y) { y = Gemm <transB = 1> (x, w, b) }"
CONV = "(float[1,16,5,5] x) => (float[A,B,C,D] y) { y = Conv (x, w, b) }"
SHAPES = {GEMM: (12, 16), CONV: (12, 16, 1, 1)}


def model(text: str, bias: NDArray[np.float32]) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> main {text}')
    weight = RANDOM.standard_normal(SHAPES.get(text, (12, 16))).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(bias.astype(np.float32), "b"))
    return made


def bias(*masks: float) -> NDArray[np.float32]:
    made = RANDOM.standard_normal(12)
    made[: len(masks)] = masks
    return made.astype(np.float32)


def feeds(source: onnx.ModelProto) -> list[dict[str, NDArray]]:
    shape = [size.dim_value for size in source.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": RANDOM.standard_normal(shape).astype(np.float32)} for _ in range(4)]


def quantized(source: onnx.ModelProto, scheme: Scheme) -> tuple[Record, float, NDArray, NDArray]:
    """Return what was done, dB on numbers that are no masks, and both outputs of the first sample."""
    samples, graph = feeds(source), model_io.load(source)
    done = quantize_graph(graph, scheme, CalibrationData(samples))
    float_model, result = open_model(model_io.load(source)), open_model(graph)
    wanted, found = (
        np.array([one.run(feed)["y"] for feed in samples], np.float64) for one in (float_model, result)
    )
    numbers = np.abs(wanted) < 5000
    error = np.square(wanted[numbers] - found[numbers]).sum()
    return done, 10 * np.log10(np.square(wanted)[numbers].sum() / error), wanted[0], found[0]


@pytest.mark.parametrize("text", (GEMM, CONV))
@pytest.mark.parametrize("masks", ([-INF], [INF], [-1e9], [LOWEST], [-65504], [1e30], [-1e4, -INF, -1e9]))
def test_masks_set_no_scale_and_stay_what_they_are(text: str, masks: list[float]) -> None:
    done, decibels, wanted, found = quantized(model(text, bias(*masks)), preset("A8W8").by_rule())
    assert decibels > 30
    assert done.count >= 3
    first, second = (np.take(one, range(len(masks)), 1) for one in (wanted, found))
    np.testing.assert_array_equal(np.sign(first), np.sign(second))
    np.testing.assert_allclose(second, first, rtol=1e-3)


@pytest.mark.parametrize("config", ("U8S8", "A16W8", "XINT8", "W4A8", "W8", "BFP16"))
def test_every_format_keeps_an_infinite_bias_apart(config: str) -> None:
    done, decibels, _, found = quantized(model(GEMM, bias(-INF, -1e9)), preset(config).by_rule())
    assert decibels > (15 if config == "W4A8" else 30)
    assert (found[:, 0] == -INF).all() and done.count


def test_alpha_and_beta_scale_the_masks_of_a_gemm() -> None:
    text = GEMM.replace("transB = 1", "transB = 1, alpha = 0.5, beta = -2.0")
    _, decibels, wanted, found = quantized(model(text, bias(-INF, 1e9)), preset("A8W8").by_rule())
    assert decibels > 30
    assert (wanted[:, 0] == INF).all() and (found[:, 0] == INF).all()
    np.testing.assert_allclose(found[:, 1], -2e9, rtol=1e-3)


def test_what_is_before_the_masks_is_no_output() -> None:
    graph = model_io.load(model(CONV, bias(-INF)))
    assert part_biases(graph, lambda node: True) == 1
    assert [node.op for node in graph.nodes] == ["Conv", "Add"]
    assert graph.outputs[0].inputs[0].op == "Add"
    assert graph.nodes[0].inputs[2].values[0] == 0
    assert graph.nodes[1].inputs[1].values.shape == (12, 1, 1)
    assert part_biases(graph, lambda node: True) == 0


def test_offsets_ordinary_numbers_and_layers_that_stay_float_are_left_alone() -> None:
    """A price is no mask: all of its offsets are large."""
    for values, parts in (
        (np.full(12, 180000), True),
        (bias(9999), True),
        (bias(-INF), False),
        (bias(), True),
    ):
        graph = model_io.load(model(GEMM, np.asarray(values)))
        assert part_biases(graph, lambda node, parts=parts: parts) == 0
        assert [node.op for node in graph.nodes] == ["Gemm"]


def test_nan_in_a_bias_is_refused() -> None:
    graph = model_io.load(model(GEMM, bias(np.nan)))
    with pytest.raises(ModelError, match="NaN in 1 weights, 'b' the first: no format can stand for it"):
        quantize_graph(graph, preset("A8W8"), CalibrationData(feeds(model(GEMM, bias()))))


@pytest.mark.parametrize("value", (np.nan, -INF, 1e30))
def test_a_bias_times_nothing_counts_for_nothing(value: float) -> None:
    text = GEMM.replace("transB = 1", "transB = 1, beta = 0.0")
    _, decibels, _, found = quantized(model(text, np.full(12, value)), preset("A8W8").by_rule())
    assert decibels > 30 and np.isfinite(found).all()


def test_what_was_made_for_a_bias_that_counts_for_nothing_is_removed() -> None:
    text = """(float[2,3] x, float[3,4] k, float[4] c) => (float[2,4] y) {
        n = Neg(c) y = Gemm <beta = 0.0> (x, k, n) }"""
    graph = model_io.load(corpus.parse(text))
    assert leave_out_biases(graph) == 1
    assert [node.op for node in graph.nodes] == ["Gemm"]
    assert "beta" not in graph.nodes[0].attrs and len(graph.nodes[0].inputs) == 2
    assert leave_out_biases(graph) == 0


def test_two_heads_in_one_output_keep_the_mask_of_one() -> None:
    """Concat of integers would cut the mask off at the end of the range of the other numbers."""
    text = """(float[4,16] x) => (float[A,B] y) {
        h = Gemm <transB = 1> (x, w, b) o = Gemm <transB = 1> (x, w) y = Concat <axis = 1> (h, o) }"""
    _, decibels, _, found = quantized(model(text, bias(-INF)), preset("A8W8").by_rule())
    assert decibels > 30 and (found[:, 0] == -INF).all()
