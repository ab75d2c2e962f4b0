"""Oracle: the integers of the model as it was, and ONNX Runtime on it."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.helpers import build
from transforms.model import graph_proto
from transforms.narrow_indices import narrow_indices


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 255, "uint8"), (-1, 127, "int8"), (0, 256, "uint16"), (-300, 3, "int16"), (0, 70000, "int32")],
)
def test_tables_are_stored_in_the_narrowest_type(low: int, high: int, dtype: str) -> None:
    """The last number is the largest, of which the type alone has to hold it."""
    indices = np.resize(np.array([low, 0, 1, high]), 1024)
    node = helper.make_node("Gather", ["x", "indices"], ["y"], "gather")
    size = max(high, -low) + 1
    model = build.model([node], [build.value("x", [size])], [build.value("y", [1024])], {"indices": indices})
    graph = graph_proto.import_model(model)
    assert narrow_indices(graph) == 1
    assert narrow_indices(graph) == 0
    narrow = graph_proto.export_model(graph)
    (stored,) = narrow.graph.initializer
    array = numpy_helper.to_array(stored)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array.astype(np.int64), indices)
    feed = {"x": np.arange(size, dtype=np.float32)}
    runs = [onnxruntime.InferenceSession(m.SerializeToString()).run(None, feed) for m in (model, narrow)]
    np.testing.assert_array_equal(*runs)


def test_small_ones_and_wide_numbers_stay() -> None:
    for indices in (np.arange(500), np.resize(np.array([0, 1 << 40]), 1024)):
        node = helper.make_node("Gather", ["x", "indices"], ["y"], "gather")
        ends = [build.value("x", ["n"])], [build.value("y", [len(indices)])]
        assert narrow_indices(graph_proto.import_model(build.model([node], *ends, {"indices": indices}))) == 0


def test_the_int32_bias_of_a_layer_stays_in_front_of_its_dequantize_linear() -> None:
    """Its numbers fit int8; behind a Cast a target's rules take it for an activation of int32."""
    outputs = 2048
    nodes = [
        helper.make_node("DequantizeLinear", ["stored", "scale"], ["bias"], "dequantize"),
        helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], "head"),
    ]
    constants = {
        "stored": np.resize(np.arange(-9, 9, dtype=np.int32), outputs),
        "scale": np.float32(0.1),
        "weight": np.ones((2, outputs), np.float32),
    }
    model = build.model(nodes, [build.value("x", [1, 2])], [build.value("y", [1, outputs])], constants)
    assert narrow_indices(graph_proto.import_model(model)) == 0
