"""Layers are equalized if the outputs gain by it.

Oracles: the float model on unseen samples, and the recorded scheme, which makes the same model again.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.choose_ranges.test_choose_settings import network, quantized, ratio, samples
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import prepare_for, quantize_graph
from transforms.scheme import preset


def uneven(spread: float, second: int = 3) -> onnx.ModelProto:
    """Return a network with channels between layers scaled: a quantized tensor keeps few bits of most.

    Those of the layer before the ``second``, which reads them.
    """
    model = onnx.ModelProto.FromString(network(0, 0.0, 1.0).SerializeToString())
    factors = np.exp2(np.random.default_rng(5).normal(0, spread, 16)).astype(np.float32)
    scale(model, f"w{second - 1}", factors.reshape(-1, 1, 1, 1))
    scale(model, f"b{second - 1}", factors)
    scale(model, f"w{second}", 1 / factors.reshape((1, -1, 1, 1) if second == 3 else (-1, 1, 1, 1)))
    return model


def scale(model: onnx.ModelProto, name: str, factors: NDArray[np.float32]) -> None:
    """Multiply a stored weight."""
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * factors, name))


@pytest.mark.parametrize("config", ("A8W8", "U8S8"))
def test_uneven_channels_are_equalized(config: str) -> None:
    model, feeds = uneven(3.0), samples(8, 1)
    scheme = preset(config).with_(move_outliers=False)  # which scales channels by samples
    made, done = quantized(model, scheme, feeds)
    assert done.changes["pairs of layers equalized"] > 0
    assert done.choice.startswith("Ranges chosen by outputs: ")
    assert "pairs of layers equalized" in done.choice
    plain = quantized(model, scheme.with_(equalize_layers=False), feeds)[0]
    unseen = samples(28, 2)
    assert ratio(model, made, unseen) > ratio(model, plain, unseen) + 3
    assert done.scheme is not None
    assert done.scheme.equalize_layers is True
    assert quantized(model, done.scheme, feeds)[0] == made


def test_even_channels_are_left_alone() -> None:
    """Rounding differs by chance alone: half a dB on samples that are held out is not reached."""
    model, feeds = uneven(1.2), samples(8, 1)
    assert quantized(model, preset("U8S8").with_(equalize_layers=True), feeds)[1].changes
    done = quantized(network(0, 0.0, 1.0), preset("U8S8"), feeds)[1]
    assert not done.changes["pairs of layers equalized"]
    assert done.scheme is not None
    assert done.scheme.equalize_layers is False


def test_a_rule_that_outputs_are_better_without_is_not_followed() -> None:
    """Weights alone differ: channels that make up for it are of unlike size."""
    model, feeds = onnx.ModelProto.FromString(network(1, 0.0, 1.0).SerializeToString()), samples(8, 1)
    random = np.random.default_rng(5)
    for name, shape in (("w2", (-1, 1, 1, 1)), ("w3", (1, -1, 1, 1))):
        scale(model, name, np.exp2(random.normal(0, 3.0, 16)).astype(np.float32).reshape(shape))
    scheme = preset("XINT8").with_(move_outliers=False, measured_biases=False)
    made, done = quantized(model, scheme, feeds)
    assert done.scheme is not None
    assert done.scheme.equalize_layers is False
    assert done.notes == ["Layers not equalized: the outputs on samples are better without"]
    ruled = quantized(model, scheme.with_(equalize_layers=True), feeds)
    assert ruled[1].changes["pairs of layers equalized"] > 0
    unseen = samples(28, 2)
    assert ratio(model, made, unseen) > ratio(model, ruled[0], unseen) + 5
    assert quantized(model, done.scheme, feeds)[0] == made


@pytest.mark.parametrize("count", (0, 1, 8))
def test_powers_of_two_are_equalized_by_rule(count: int) -> None:
    """Without samples, with one, and if the outputs gain by it."""
    graph = model_io.load(uneven(3.0))
    data = CalibrationData(samples(max(1, count), 1), decides=count > 0)
    done = quantize_graph(graph, preset("XINT8").with_(move_outliers=False), data)
    assert done.changes["pairs of layers equalized"] > 0
    assert done.scheme is not None
    assert done.scheme.equalize_layers is True


def test_a_scheme_that_says_so_is_not_compared() -> None:
    model, feeds = uneven(3.0), samples(8, 1)
    done = quantized(model, preset("U8S8").with_(equalize_layers=False), feeds)[1]
    assert "equalized" not in done.choice
    ruled = preset("U8S8").by_rule()
    assert ruled.equalize_layers is False
    assert not quantized(model, ruled, feeds)[1].changes["pairs of layers equalized"]


@pytest.mark.parametrize("config", ("A8W8", "A16W8", "U8S8", "U16S8", "W4A8", "XINT8"))
@pytest.mark.parametrize(
    "changes", ({}, {"move_outliers": False}, {"equalize_layers": "auto", "per_channel": False})
)
def test_the_float_model_takes_the_same_form_again(config: str, changes: dict[str, bool | str]) -> None:
    """What tuning and reports compare with: weights of the recorded scheme, those that were quantized.

    A row of weights stands out: 16 bits balance it.
    """
    model, feeds = uneven(3.0, second=2), samples(8, 1)
    scale(model, "w3", np.where(np.arange(16) == 3, 300, 1).astype(np.float32).reshape(1, -1, 1, 1))
    graph, again = model_io.load(model), model_io.load(model)
    done = quantize_graph(graph, preset(config).with_(**changes), CalibrationData(feeds), keep_float=True)
    assert done.float_graph is not None
    assert done.scheme is not None
    prepare_for(again, done.scheme)
    kept, made = (graph_proto.export_model(one) for one in (done.float_graph, again))
    assert kept.graph.initializer == made.graph.initializer
    assert kept.graph.node == made.graph.node


def test_no_layers_are_equalized_after_outliers_are_moved() -> None:
    """A recorded scheme is repeated in one order: layers first."""
    matrix = np.eye(8, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    ends = [helper.make_tensor_value_info(name, 1, ["N", 8]) for name in ("x", "y")]
    factors = np.exp2(np.arange(8)).astype(np.float32)
    stored = [
        numpy_helper.from_array(matrix * factors, "w1"),
        numpy_helper.from_array(matrix / factors[:, None], "w2"),
    ]
    graph = helper.make_graph(nodes, "pair", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    random = np.random.default_rng(0)
    feeds = [{"x": random.standard_normal((4, 8)).astype(np.float32)} for _ in range(8)]
    scheme = preset("U8S8").with_(move_outliers=False)
    assert quantized(model, scheme, feeds)[1].changes["pairs of layers equalized"] == 1
    named = scheme.with_(outliers={"r": "7:2"})
    assert quantized(model, named, feeds)[1].changes["pairs of layers equalized"] == 0
