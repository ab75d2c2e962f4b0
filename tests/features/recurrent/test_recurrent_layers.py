"""Oracle: the float weights of the model beside the integers of the quantized one, decoded by NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import recurrent
from transforms.compare.light_file import read_light
from transforms.compare.number_formats import RoundedTensors, weight_rows
from transforms.deploy.low_precision import low_precision
from transforms.layers.match_layers import match_layers
from transforms.model import graph_proto
from transforms.precision.switched_layers import SwitchedLayers
from transforms.quantize_recurrent import quantize_recurrent
from transforms.scheme.targets import target
from transforms.write_dynamic_lstm import write_dynamic_lstm


def _quantized(source: onnx.ModelProto, *, dynamic: bool = False) -> onnx.ModelProto:
    graph = graph_proto.import_model(source)
    quantize_recurrent(graph)
    if dynamic:
        assert write_dynamic_lstm(graph, least=0) == 2
    return graph_proto.export_model(graph)


@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_are_told_apart_and_switched_to_float(dynamic: bool) -> None:
    """In float all of them make what the float model does, and one by one something between."""
    source = recurrent.gated("LSTM", layers=2)
    models = (source, _quantized(source, dynamic=dynamic))
    layers = SwitchedLayers(*map(graph_proto.import_model, models))
    assert [part.name for part in layers.parts][:2] == ["rec0", "rec1"]
    assert not layers.unpaired
    feed = {"x": recurrent.sound()}
    floats, first, both = (layers.run(feed, on)["y"] for on in ((), (0,), (0, 1)))
    assert 0 < np.square(first - floats).sum() < np.square(both - floats).sum()
    if not dynamic:
        weights = [one for one in layers.readings["rec0"] if not one.is_tunable]
        assert [(one.index, one.format) for one in weights] == [(1, "int8"), (2, "int8")]
        assert all(0 < np.abs(one.values - one.rounded).max() < 0.01 for one in weights)


def test_inspection_counts_integers_and_no_decoded_weights() -> None:
    model = _quantized(recurrent.gated("GRU"))
    assert weight_rows(read_light(model))["int8"].elements == 2 * 72 * (40 + 24)
    made, _ = RoundedTensors(onnx.shape_inference.infer_shapes(model)).rows()
    assert made["float32"].tensors == 4, "what the layer, Transpose, Reshape and Tanh make"


def test_targets_and_tuning_know_layers_by_name() -> None:
    source = recurrent.gated("LSTM", layers=2)
    integers, weights = (_quantized(source, dynamic=dynamic) for dynamic in (True, False))
    row = target("ort-cpu")
    found = [low_precision(graph_proto.import_model(one), row) for one in (integers, weights)]
    assert [one.low["DynamicQuantizeLSTM"] for one in found] == [2, 0]
    assert {op for nodes in found[1].high.values() for op, _ in nodes} == {"LSTM", "Tanh"}
    for model in (integers, weights):
        _, left = match_layers(graph_proto.import_model(source), graph_proto.import_model(model))
        assert [one.name for one in left] == ["rec0", "rec1"]
