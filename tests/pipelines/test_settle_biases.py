"""Biases take back the mean errors of layers of a quantized model if its outputs are better for it.

Oracles: the float model on unseen samples, the means of its layers, and what is known of numbers drawn at
random.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper, numpy_helper

from tests.choose_ranges.test_choose_settings import ratio
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.full_range.recorded_shifts import recorded_shifts
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import Quantized, quantize_graph
from transforms.pipelines.quantize_steps import CORRECTED
from transforms.pipelines.settle_biases import _share, outputs_of_layers, settle_biases
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme, preset

WIDTH = 24


def left_product() -> onnx.ModelProto:
    """Return a Gemm of 16 by 16 results whose weight is its first input, with a bias in a column."""
    random = np.random.default_rng(2)
    constants = {"w": random.standard_normal((16, 16)), "b": random.standard_normal((16, 1))}
    nodes = [helper.make_node("Gemm", ["w", "x", "b"], ["y"], transA=1)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [16, 16]) for name in ("x", "y")]
    stored = [numpy_helper.from_array(one.astype(np.float32), name) for name, one in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def crowded(activation: str = "silu", opset: int = 17) -> onnx.ModelProto:
    """Return a network whose layers make many numbers near zero and few large ones: one step holds most."""
    draw = np.random.default_rng(3)
    nodes, stored, last = [], [], "x"
    for number in range(4):
        inputs = 3 if number == 0 else WIDTH
        weight = draw.normal(0, (2 / (9 * inputs)) ** 0.5, (WIDTH, inputs, 3, 3))
        stored += [
            numpy_helper.from_array(weight.astype(np.float32), f"w{number}"),
            numpy_helper.from_array(draw.normal(-0.3, 0.1, WIDTH).astype(np.float32), f"b{number}"),
        ]
        made = f"c{number}"
        nodes.append(helper.make_node("Conv", [last, f"w{number}", f"b{number}"], [made], pads=[1] * 4))
        last = f"a{number}"
        if activation == "relu":
            nodes.append(helper.make_node("Relu", [made], [last]))
            continue
        nodes.append(helper.make_node("Sigmoid", [made], [f"s{number}"]))
        nodes.append(helper.make_node("Mul", [made, f"s{number}"], [last]))
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "wg", "bg"], ["y"]),
    ]
    stored += [
        numpy_helper.from_array(draw.normal(0, 0.4, (WIDTH, 5)).astype(np.float32), "wg"),
        numpy_helper.from_array(np.zeros(5, np.float32), "bg"),
    ]
    graph = helper.make_graph(
        nodes,
        "crowded",
        [helper.make_tensor_value_info("x", 1, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", 1, ["n", 5])],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def images(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Return noise with a bright spot each."""
    draw, found = np.random.default_rng(seed), []
    for _ in range(count):
        array = draw.normal(0, 0.5, (1, 3, 16, 16))
        row, column = draw.integers(0, 14, 2)
        array[:, :, row : row + 2, column : column + 2] += draw.uniform(20, 30)
        found.append({"x": array.astype(np.float32)})
    return found


def quantized(
    model: onnx.ModelProto, scheme: Scheme, feeds: list[dict[str, Any]], threads: int = 1
) -> tuple[gs.Graph, Quantized]:
    """Return a quantized graph, and what was done."""
    graph = model_io.load(model)
    data = CalibrationData(feeds, run=RunOptions(threads=threads))
    return graph, quantize_graph(graph, scheme, data, keep_float=True)


def as_bytes(graph: gs.Graph) -> bytes:
    """Return a graph as a file."""
    return graph_proto.export_model(graph).SerializeToString(deterministic=True)


def means(graph: gs.Graph, names: list[str], feeds: list[dict[str, Any]]) -> np.ndarray:
    """Return the means of the channels of tensors over samples."""
    made = {tensor.name: tensor for node in graph.nodes for tensor in node.outputs}
    graph.outputs = [made[name] for name in names]
    for tensor in graph.outputs:
        tensor.dtype, tensor.shape = np.dtype(np.float32), None
    model = open_model(graph)
    found = [np.concatenate([model.run(feed)[name].mean((0, 2, 3)) for name in names]) for feed in feeds]
    return np.mean(found, axis=0)


def within_samples(config: str) -> Scheme:
    """Return a preset whose ranges are those of the samples: what is cut off hides what biases bring."""
    return preset(config).with_(calibrate_method=preset(config).by_rule().calibrate_method)


@pytest.mark.parametrize("opset", (17, 18))
@pytest.mark.parametrize("config", ("A8W8", "U8S8"))
def test_outputs_on_unseen_samples_are_better(config: str, opset: int) -> None:
    model, scheme, unseen = crowded(opset=opset), within_samples(config), images(28, 2)
    made, done = quantized(model, scheme, images(8, 1))
    assert done.changes[CORRECTED] > 0
    plain, without = quantized(model, scheme.with_(correct_biases=False), images(8, 1))
    assert without.changes[CORRECTED] == 0
    assert ratio(model, as_bytes(made), unseen) > ratio(model, as_bytes(plain), unseen) + 1


@pytest.mark.parametrize("codes", ("off", "padded"))
def test_means_of_layers_are_those_of_the_float_model(codes: str) -> None:
    """A tensor that is shifted has the mean of the float model, less its shift."""
    scheme = preset("A8W8").with_(full_range=codes)
    model = crowded("relu" if codes == "padded" else "silu")
    names, unseen = ["c1", "c2"], images(28, 2)
    errors = []
    for corrected in ("auto", False):
        graph, done = quantized(model, scheme.with_(correct_biases=corrected), images(8, 1))
        shifts = recorded_shifts(graph)
        assert bool(shifts) == (codes == "padded")
        expected = means(done.float_graph, names, unseen)
        shift = np.repeat([shifts.get(name, 0.0) for name in names], WIDTH)
        errors.append(float(np.square(means(graph, names, unseen) + shift - expected).sum()))
    assert errors[0] < 0.5 * errors[1]


def test_fewer_than_eight_samples_change_no_bias() -> None:
    assert quantized(crowded(), preset("A8W8"), images(7, 1))[1].changes[CORRECTED] == 0


def test_a_column_is_no_bias_of_channels() -> None:
    """Means of columns are as many numbers: they would be added to rows."""
    graph = model_io.load(left_product())
    outputs = outputs_of_layers(graph)
    random = np.random.default_rng(3)
    feeds = [{"x": random.random((16, 16), np.float32)} for _ in range(8)]
    floats = FloatRuns(graph, feeds, None)
    quantize_graph(graph, preset("A8W8").by_rule(), CalibrationData(feeds))
    assert any(node.op == "DequantizeLinear" and node.inputs[0].dtype == np.int32 for node in graph.nodes)
    before = as_bytes(graph)
    assert settle_biases(graph, outputs, floats, judged=False) == 0
    assert as_bytes(graph) == before


def test_threads_change_nothing() -> None:
    one, four = (quantized(crowded(), preset("A8W8"), images(8, 1), threads)[0] for threads in (1, 4))
    assert as_bytes(one) == as_bytes(four)


@pytest.mark.parametrize("config", ("A8W8", "U8S8"))
def test_the_recorded_scheme_makes_the_same_model_again(config: str) -> None:
    graph, done = quantized(crowded(), within_samples(config), images(8, 1))
    assert done.scheme is not None
    assert done.scheme.measured_biases is True
    assert as_bytes(quantized(crowded(), done.scheme, images(8, 1))[0]) == as_bytes(graph)


def test_a_mean_counts_by_how_far_it_stands_out() -> None:
    """Of eight draws around zero nothing is left in most cases, of those around one nearly all."""
    draw = np.random.default_rng(1)
    noise = [np.square(_share(draw.normal(0, 1, (8, 64)))).mean() for _ in range(200)]
    assert np.median(noise) == 0
    assert np.mean(noise) < 0.1 / 8
    shown = _share(draw.normal(1, 0.1, (8, 64)))
    assert np.abs(shown - 1).max() < 0.15
    assert not _share(np.zeros((8, 4))).any()
    assert not _share(np.full((8, 4), np.nan)).any()
