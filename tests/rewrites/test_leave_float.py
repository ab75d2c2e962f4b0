"""Nodes that are left in float. Oracle: the numbers that the quantizations round, without the rounding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import real_models
from transforms.leave_float import leave_float
from transforms.model import graph_proto

X = np.linspace(-8, 8, 33, dtype=np.float32)


@pytest.mark.parametrize("opset", [10, 13])
def test_what_the_quantization_cuts_off_stays_cut_off(opset: int) -> None:
    """With its zero point at the end of the type, a quantization is the Relu that was there."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        relu (float[33] x) => (float[33] y) <float s = {{0.02}}, uint8 z = {{0}}> {{
            a = Identity(x)
            q = QuantizeLinear(a, s, z)
            b = DequantizeLinear(q, s, z)
            y = Identity(b)
        }}""")
    graph = graph_proto.import_model(model)
    assert leave_float(graph, "a") == 1
    assert [node.op for node in graph.nodes] == ["Identity", "Clip", "Identity"]
    (found,) = real_models.session(graph_proto.export_model(graph).SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(found, np.clip(X, 0, 255 * np.float32(0.02)))
    assert leave_float(graph, "a") == 0
