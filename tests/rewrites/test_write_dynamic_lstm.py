"""Oracle: ONNX Runtime's LSTM on the numbers that the integers stand for; its DynamicQuantizeLSTM rounds
inputs and states to 8 bits, each to half of 1/255 of their range."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.helpers import recurrent
from transforms.graph.proto_graphs import each_graph, each_node
from transforms.model import graph_proto
from transforms.quantize_recurrent import quantize_recurrent
from transforms.write_dynamic_lstm import write_dynamic_lstm


def _written(source: onnx.ModelProto, dtype: str = "int8", **options: int) -> tuple[onnx.ModelProto, ...]:
    graph = graph_proto.import_model(source)
    quantize_recurrent(graph, dtype)
    plain = graph_proto.export_model(graph)
    found = write_dynamic_lstm(graph, **{"least": 0, **options})
    assert not found or write_dynamic_lstm(graph, least=0) == 0
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model)
    return plain, model


def _arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for g in each_graph(model.graph) for t in g.initializer}


def _run(model: onnx.ModelProto, level: int, **feed: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {"x": recurrent.sound(), **feed})[0])


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("in_body", [False, True])
def test_integers_are_the_same_and_outputs_near(directions: int, in_body: bool) -> None:
    """No decoded weights are left; noise of 1/255 of 6 standard deviations is 40 dB below the signal."""
    plain, model = _written(recurrent.gated("LSTM", directions=directions, in_body=in_body))
    ops = [node.op_type for node in each_node(model.graph)]
    assert ops.count("DynamicQuantizeLSTM") == 1 + in_body
    assert not {"LSTM", "Cast", "Mul"} & set(ops)
    before, after = _arrays(plain), _arrays(model)
    for name in ("w0", "r0"):
        turned = before[f"{name}_quantized"].transpose(0, 2, 1)
        assert after[f"{name}_turned"].dtype == np.uint8  # with int8, sums saturate on x86 without VNNI
        zero_points = after[f"{name}_zero_points"][:, None].astype(int)
        np.testing.assert_array_equal(turned, after[f"{name}_turned"] - zero_points)
        np.testing.assert_array_equal(before[f"{name}_scale"][..., 0], after[f"{name}_scales"])
    feed = {"c": np.array(True)} if in_body else {}
    expected, found, unoptimized = _run(plain, 99, **feed), _run(model, 99, **feed), _run(model, 0, **feed)
    np.testing.assert_array_equal(found, unoptimized)
    assert np.square(found - expected).sum() < 1e-3 * np.square(expected).sum()
    assert np.any(found != expected)


def test_what_stays_an_lstm() -> None:
    """Small layers, weights of 4 bits, other operators, layers that are excluded."""
    for source, dtype, options in (
        (recurrent.gated("LSTM"), "int8", {"least": 1 << 20}),
        (recurrent.gated("LSTM"), "int4", {}),
        (recurrent.gated("LSTM"), "uint8", {}),
        (recurrent.gated("GRU"), "int8", {}),
        (recurrent.gated("LSTM"), "int8", {"exclude": ["rec0"]}),
    ):
        plain, model = _written(source, dtype, **options)
        assert [n.op_type for n in plain.graph.node] == [n.op_type for n in model.graph.node]
