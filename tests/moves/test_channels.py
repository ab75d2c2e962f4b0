"""Channels between convolutions are scaled if the outputs gain by it.

Oracles: the float model on unseen samples, and the recorded scheme, which makes the same model again.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.helpers.judged_networks import network, quantized, ratio, samples
from tests.helpers.spread import spread
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.channels.propose_scales import find_sites, propose_scales, sizes_of
from transforms.conversion.float_reference import float_reference
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

SCALED = "tensors with channels scaled between layers"


def uneven(spread: float, activation: str = "silu") -> onnx.ModelProto:
    """Return a network whose first convolution makes channels of unlike sizes, a stem of a detector."""
    model = onnx.ModelProto.FromString(network(0, 0.0, 1.0).SerializeToString())
    factors = np.exp2(np.random.default_rng(5).normal(0, spread, 16)).astype(np.float32)
    by_name = {tensor.name: tensor for tensor in model.graph.initializer}

    def _scale(name: str, values: NDArray[np.float32]) -> None:
        stored = numpy_helper.to_array(by_name[name])
        by_name[name].CopyFrom(numpy_helper.from_array(stored * values, name))

    _scale("w1", factors.reshape(-1, 1, 1, 1))
    _scale("b1", factors)
    _scale("w2", 1 / factors.reshape(-1, 1, 1, 1))
    gates = {
        "relu": [helper.make_node("Relu", ["c1"], ["r1"])],
        "silu": [helper.make_node("Sigmoid", ["c1"], ["s"]), helper.make_node("Mul", ["c1", "s"], ["r1"])],
        "hardswish": [helper.make_node("HardSwish", ["c1"], ["r1"])],
    }
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([nodes[0], *gates[activation], *nodes[2:]])
    return model


@pytest.mark.parametrize(
    ("config", "activation"), spread(("A8W8", "U8S8"), ("relu", "silu", "hardswish"), of=3)
)
def test_uneven_channels_are_scaled(config: str, activation: str) -> None:
    """The float model of the recorded scheme, for tuning, is the one that was quantized."""
    model, scheme, feeds = uneven(3.0, activation), preset(config).with_(keep_float=False), samples(8, 1)
    made, done = quantized(model, scheme, feeds)
    assert done.changes[SCALED] > 0
    assert any(one.move == "channels" for one in done.decisions.kept)
    plain = quantized(model, scheme.with_(move_outliers=False, equalize_layers=False), feeds)[0]
    unseen = samples(28, 2)
    assert ratio(model, made, unseen) > ratio(model, plain, unseen) + 3
    assert done.scheme is not None
    assert "r1" in done.scheme.outliers
    assert quantized(model, done.scheme, feeds)[0] == made
    recorded = model_io.load(onnx.ModelProto.FromString(made))
    reference = float_reference(lambda: model_io.load(model), recorded, done.scheme)
    assert "r1_moved" in reference.tensors()


def test_even_channels_are_left_alone() -> None:
    done = quantized(network(0, 0.0, 1.0), preset("U8S8"), samples(8, 1))[1]
    assert not done.changes[SCALED]
    assert done.scheme is not None
    assert not done.scheme.outliers


def test_a_target_gets_no_further_nodes() -> None:
    """A gate needs another Mul, which costs time: what is made for a runtime keeps its nodes."""
    scheme, feeds = preset("U8S8").with_(target="ort-cpu"), samples(8, 1)
    assert not quantized(uneven(3.0), scheme, feeds)[1].changes[SCALED]
    assert quantized(uneven(3.0, "relu"), scheme, feeds)[1].changes[SCALED] > 0


@pytest.mark.parametrize("named", ({"move_outliers": False}, {"outliers": {"r1": "1:1"}}))
def test_what_a_scheme_says_is_kept(named: dict[str, object]) -> None:
    done = quantized(uneven(3.0), preset("U8S8").with_(**named), samples(8, 1))[1]
    assert done.changes[SCALED] == ("outliers" in named)
    assert not any(one.move == "channels" for one in done.decisions.kept)


def test_channels_get_headroom_for_unseen_samples() -> None:
    """By hand: no other channel comes nearer to the largest than half of it, 32 numbers decide nothing."""
    values = np.float32([64, 15, 1, 1 / 64])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "d"], ["y"], group=4),
    ]
    ends = [helper.make_tensor_value_info(name, 1, ["N", 4, "H", "W"]) for name in ("x", "y")]
    stored = [
        numpy_helper.from_array(np.diag(values).reshape(4, 4, 1, 1), "w"),
        numpy_helper.from_array((1 / values).reshape(4, 1, 1, 1), "d"),
    ]
    graph = helper.make_graph(nodes, "stem", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ones = np.ones((1, 4, 16, 16), np.float32)
    sites = find_sites(model_io.load(model))
    for array, wanted in ((ones, {"r": "1:-1 2:-5 3:-7"}), (ones[:, :, :4, :8], {})):
        sizes = sizes_of(sites)
        sizes["r"].add(array * values.reshape(-1, 1, 1))
        found = propose_scales(sites, sizes, levels=(255.0, 127.0))
        assert {name: str(move) for name, move in found.items()} == wanted


@pytest.mark.parametrize("activation", ("relu", "silu"))
def test_data_that_can_be_taken_only_once_give_the_same_model(activation: str) -> None:
    """Its first samples are kept."""
    model, feeds = uneven(3.0, activation), samples(8, 1)
    found = []
    for source in (feeds, iter(feeds)):
        graph = model_io.load(model)
        done = quantize_graph(graph, preset("A8W8").with_(keep_float=False), CalibrationData(source))
        assert done.changes[SCALED] > 0
        found.append(graph_proto.export_model(graph))
    assert found[0] == found[1]


def test_a_sample_that_the_model_refuses_is_named() -> None:
    model, feeds = uneven(3.0), samples(8, 1)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "channels"
    feeds[2] = {"x": feeds[2]["x"][:, :2]}
    with pytest.raises(ValueError, match=r"sample '.*2': the model fails"):
        quantize_graph(model_io.load(model), preset("A8W8"), CalibrationData(feeds))


def test_a_convolutional_network_has_no_outliers_to_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is proposed for it, and what proposes is not even asked."""
    from transforms.channels import propose_moves

    asked: list[object] = []
    monkeypatch.setattr(propose_moves, "find_operands", lambda plan: asked.append(plan) or {})
    quantized(uneven(3.0, "relu"), preset("A8W8"), samples(8, 1))
    assert asked == []
