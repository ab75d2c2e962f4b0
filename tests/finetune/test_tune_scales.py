"""Scales of activations after tuning. Oracle: errors of the same model with a scale known to be wrong."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import tunable
from transforms.finetune.output_error import OutputError
from transforms.finetune.tune_scales import tune_scales
from transforms.graph.constants import load

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 16)


def _first_scale(graph: gs.Graph) -> gs.Constant:
    node = next(node for node in graph.nodes if node.op == "QuantizeLinear")
    return node.inputs[1]


def _with_first_scale(graph: gs.Graph, factor: float) -> None:
    """Multiply the scale of the model's input, and the numbers of the bias that goes with it."""
    scale = _first_scale(graph)
    for node in [reader for reader in scale.outputs if reader.op == "DequantizeLinear"]:
        for reader in node.outputs[0].outputs:
            back = reader.inputs[2].inputs[0]
            back.inputs[0].values = np.rint(load(back.inputs[0]) / factor).astype(np.int32)
            back.inputs[1].values = (load(back.inputs[1]) * factor).astype(np.float32)
    scale.values = (load(scale) * np.float32(factor)).astype(np.float32)


@pytest.mark.parametrize("name", ["A8W8", "U8S8"])
def test_a_scale_that_clips_is_widened_with_its_bias(name: str) -> None:
    float_graph, quantized = tunable.pair(CONV, name, DATA)
    judge = OutputError(float_graph, DATA)
    _with_first_scale(quantized, 1 / 2.5)
    narrow = load(_first_scale(quantized)).copy()
    before = judge.each(quantized).relative
    graph, changed = tune_scales(quantized, judge.opened)
    assert changed >= 1 and judge.each(graph).relative < 0.9 * before
    assert load(_first_scale(graph)) > 1.14 * narrow
    assert np.array_equal(load(_first_scale(quantized)), narrow)  # the given model is unchanged


@pytest.mark.parametrize("name", ["XINT8", "MX6", "BF16"])
def test_powers_of_two_and_formats_without_scales_stay(name: str) -> None:
    float_graph, quantized = tunable.pair(CONV, name, DATA)
    graph, changed = tune_scales(quantized, OutputError(float_graph, DATA).opened)
    assert graph is quantized and not changed


def test_a_scale_that_is_too_large_stays() -> None:
    """Samples that need no more than half of the range do not say that others do not."""
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
    judge = OutputError(float_graph, DATA)
    _with_first_scale(quantized, 2.0)
    wide = load(_first_scale(quantized)).copy()
    kept, _ = tune_scales(quantized, judge.opened)
    assert load(_first_scale(kept)) >= wide


@pytest.mark.parametrize("way", ["", "m = Transpose(d) q2 = QuantizeLinear(m, scale, zero) d2 = "])
@pytest.mark.parametrize(("op", "is_narrowed"), [("Sigmoid", True), ("LeakyRelu", False)])
def test_a_scale_becomes_less_before_a_function_that_is_level(way: str, op: str, is_narrowed: bool) -> None:
    """Steps of 0.3 reach to 38: a Sigmoid needs 8 of these, and of another function nobody knows."""
    back = f"{way}DequantizeLinear(q2, scale, zero) y = {op}(d2)" if way else f"y = {op}(d)"
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[6, 6] x) => (float[6, 6] y)
        <float scale = {0.3}, int8 zero = {0}>
        { %s }"""
    pairs = "q = QuantizeLinear(x, scale, zero) d = DequantizeLinear(q, scale, zero)"
    float_graph, quantized = (
        gs.import_onnx(onnx.parser.parse_model(text % nodes))
        for nodes in (f"m = Transpose(x) y = {op}(m)" if way else f"y = {op}(x)", f"{pairs} {back}")
    )
    feeds = [{"x": np.linspace(-4, 4, 36, dtype=np.float32).reshape(6, 6)}]
    graph, changed = tune_scales(quantized, OutputError(float_graph, feeds).opened)
    assert changed == is_narrowed and (load(_first_scale(graph)) < 0.29) == is_narrowed
