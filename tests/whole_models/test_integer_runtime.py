"""Oracle: ONNX Runtime's own static quantization, and the graph that its optimizer makes of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tests.helpers import conversion, plans
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

CNN = """(float[1,3,8,8] x) => (float[1,5] y) {
    [one] a = Conv <pads = [1, 1, 1, 1]> (x, w, b) [act] r = Relu(a)
    [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    [two] d = Conv <pads = [1, 1, 1, 1]> (p, v, c) [sum] s = Add(p, d) [act2] t = Relu(s)
    [gap] g = GlobalAveragePool(t) [flat] h = Flatten(g) [head] y = Gemm(h, f, e) }"""
WEIGHTS: plans.Weights = {"w": (4, 3, 3, 3), "v": (4, 4, 3, 3), "f": (4, 5), "b": (4,), "c": (4,), "e": (5,)}
STRAIGHT = """(float[1,3,8,8] x) => (float[1,4,8,8] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w, b) y = Conv <pads = [1, 1, 1, 1]> (a, v, c) }"""


def feeds() -> list[dict[str, NDArray]]:
    random = np.random.default_rng(3)
    return [{"x": random.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


class Reader(CalibrationDataReader):
    """The same data for ONNX Runtime."""

    def __init__(self) -> None:
        self._feeds: Iterator[Mapping[str, NDArray]] = iter(feeds())

    def get_next(self) -> Mapping[str, NDArray] | None:
        return next(self._feeds, None)


def used(text: str) -> plans.Weights:
    return {name: shape for name, shape in WEIGHTS.items() if f" {name}," in text or f" {name})" in text}


def ours(scheme: str, text: str = CNN, **changes: Any) -> onnx.ModelProto:
    graph = plans.graph(text, used(text))
    quantize_graph(graph, preset(scheme).with_(keep_float=False, **changes), CalibrationData(feeds()))
    return graph_proto.export_model(graph)


def theirs(folder: Path, activation: QuantType, *, symmetric: bool) -> onnx.ModelProto:
    onnx.save(plans.model(CNN, WEIGHTS), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "theirs.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=activation,
        weight_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": symmetric},
    )
    return onnx.load(folder / "theirs.onnx")


def activations(model: onnx.ModelProto) -> set[str]:
    """Return the tensors that are quantized, by the name that the float model has for them."""
    places = {name: node.output[0] for node in model.graph.node for name in node.input}
    found = set()
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            pair = places[node.output[0]]
            made = {output.name for output in model.graph.output} & {pair}
            found.add(made.pop() if made else node.input[0])
    return found


def optimized(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    """Return how often each operator occurs in the graph that ONNX Runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


def test_unsigned_activations_are_those_of_static_quantization(tmp_path: Path) -> None:
    found = activations(ours("U8S8", optimize=False))
    assert found == activations(theirs(tmp_path, QuantType.QUInt8, symmetric=False))
    assert found == set("xrpdtghy")


def test_signed_activations_are_quantized_once_per_layer(tmp_path: Path) -> None:
    """A documented difference: static quantization rounds before a Relu as well as after it."""
    found = activations(ours("A8W8", optimize=False))
    assert found == set("xrpdtghy")
    assert activations(theirs(tmp_path, QuantType.QInt8, symmetric=True)) == found | {"a", "s"}


@pytest.mark.parametrize("fold", (False, True))
def test_every_layer_of_a_network_in_u8s8_runs_in_integers(fold: bool, tmp_path: Path) -> None:
    found = optimized(ours("U8S8", fold_relu=fold), tmp_path)
    integers = {"QLinearConv": 2, "QLinearAdd": 1, "QLinearGlobalAveragePool": 1, "QGemm": 1}
    assert {name: found[name] for name in integers} == integers
    assert not found.keys() & {"Conv", "FusedConv", "Gemm", "Add", "Relu", "MaxPool", "GlobalAveragePool"}


@pytest.mark.parametrize("per_channel", (False, True))
def test_convs_in_a8w8_run_in_integers(per_channel: bool, tmp_path: Path) -> None:
    found = optimized(ours("A8W8", STRAIGHT, per_channel=per_channel), tmp_path)
    assert found["QLinearConv"] == 2
    assert not found.keys() & {"Conv", "FusedConv"}


@pytest.mark.parametrize("scheme", ("U8S8", "A8W8"))
def test_optimized_graphs_make_the_same_numbers(scheme: str) -> None:
    """Up to the steps by which a sum of integers may be rounded another way."""
    model = ours(scheme)
    for feed in feeds():
        literal = conversion.run(model, feed)["y"]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        steps = np.unique(np.abs(np.diff(np.sort(literal.reshape(-1)))))
        step = float(steps[steps > 0].min())
        assert np.abs(session.run(None, feed)[0] - literal).max() <= 3 * step


MATMULS = {
    "second operand": "y = MatMul(x, w)",
    "first operand": "y = MatMul(w, x)",
    "transposed": "y = Gemm <transB = 1> (x, w, b)",
    "first of Gemm": "y = Gemm(w, x, b)",
}


@pytest.mark.parametrize("call", (*MATMULS.values(), "y = MatMul(x, stack)"))
@pytest.mark.parametrize("scheme", ("U8S8", "A8W8", "A16W8", "W4A8"))
def test_scales_per_channel_run_wherever_the_weight_is(call: str, scheme: str) -> None:
    """ONNX Runtime refuses a scale per channel for a stack of matrices, so they have one for all."""
    shapes: plans.Weights = {"w": (6, 6), "b": (6,), "stack": (2, 6, 6)}
    shapes = {name: shape for name, shape in shapes.items() if f" {name}" in call or f"({name}" in call}
    text = f"(float[6,6] x) => (float[{'2,' * ('stack' in call)}6,6] y) {{ {call} }}"
    model = plans.model(text, shapes)
    graph = plans.graph(text, shapes)
    random = np.random.default_rng(4)
    data = [{"x": random.standard_normal((6, 6)).astype(np.float32)} for _ in range(3)]
    quantize_graph(graph, preset(scheme).with_(per_channel=True, keep_float=False), CalibrationData(data))
    session = onnxruntime.InferenceSession(graph_proto.export_model(graph).SerializeToString())
    wanted = conversion.run(model, data[0])["y"]
    error = np.square(session.run(None, data[0])[0] - wanted).mean() / np.square(wanted).mean()
    assert error < (0.02 if scheme == "W4A8" else 0.001)
