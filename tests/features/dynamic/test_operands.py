"""Oracle: errors of rows that ONNX Runtime rounds by the nodes that are written."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import parser

from transforms.features.dynamic.operands import row_error
from transforms.features.dynamic.products import round_at_run_time
from transforms.features.dynamic.rounding import SYMMETRIC, row_grid
from transforms.model import graph_proto

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("op", ["Identity", "Relu", "Gelu"])
def test_the_error_of_rows_is_that_of_the_nodes(op: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 20]> g (float[t,8] x, float[8,3] w) => (float[t,3] y)
        {{ h = {op}(x) y = MatMul(h, w) }}"""
    graph: gs.Graph = graph_proto.import_model(parser.parse_model(text))
    source, product = graph.nodes
    grid = row_grid(source.outputs[0])
    round_at_run_time(graph, [product], "row")
    graph.outputs = [source.outputs[0], product.inputs[0]]
    graph.cleanup()
    model = graph_proto.export_model(graph).SerializeToString()
    rows = (np.exp(RANDOM.standard_normal((50, 1))) * RANDOM.standard_normal((50, 8))).astype(np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact, rounded = ort.InferenceSession(model, options).run(
        None, {"x": rows, "w": np.zeros((8, 3), np.float32)}
    )
    norms = RANDOM.random(8)
    expected = float(np.square(rounded - exact, dtype=np.float64).mean(0) @ norms)
    assert row_error(grid, exact, norms, False) == pytest.approx(expected, rel=1e-3)
    assert (grid is SYMMETRIC) == (op == "Identity")
    if op != "Identity":
        assert row_error(grid, exact, norms, True) > 1.5 * expected
