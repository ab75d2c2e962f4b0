"""Oracle: NumPy's rounding to a step of each channel's own, of which half is the largest error."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers import build
from transforms.layers.match_layers import match_layers
from transforms.layers.stored_constant import StoredConstant
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset


def _model(groups: int, outputs: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return a ConvTranspose on 8 channels, of which each has filters of another size."""
    random = np.random.default_rng(0)
    sizes = np.exp(np.arange(8.0)).reshape(8, 1, 1, 1)
    w = (random.standard_normal((8, outputs, 3, 3)) * sizes).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "turned", group=groups)
    ends = [build.value("x", [1, 8, 5, 5])], [build.value("y", [1, groups * outputs, 7, 7])]
    return build.model([node], *ends, {"w": w}), w


def _stored(model: onnx.ModelProto) -> StoredConstant:
    graph, floats = graph_proto.import_model(model), graph_proto.import_model(model)
    quantize_graph(graph, preset("W8"), None)
    ((layer,), left) = match_layers(floats, graph)
    assert not left
    return layer.weight


def test_each_channel_has_a_scale_that_tuning_knows() -> None:
    model, w = _model(8, 1)
    weight = _stored(model)
    step = np.abs(w).max(axis=(1, 2, 3), keepdims=True) / 127
    assert weight.scale is not None and weight.scale.shape == (8,)
    assert np.all(np.abs(weight.values() - w) <= step / 2 * (1 + 1e-6))


@pytest.mark.parametrize(("groups", "outputs"), [(2, 3), (8, 2)])
def test_groups_of_several_channels_share_a_scale(groups: int, outputs: int) -> None:
    """An index along either axis of the weight stands for several channels of the output."""
    weight = _stored(_model(groups, outputs)[0])
    assert weight.scale is not None and weight.scale.shape == ()
