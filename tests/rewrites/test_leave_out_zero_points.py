"""Zero points of 0 that ONNX Runtime stumbles over are left out, and nothing else.

Oracle: ONNX Runtime without graph optimizations, which takes the models as they are.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from transforms import model_io
from transforms.model import graph_proto
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.runtime_workarounds import leave_out_zero_points

MOVERS = {
    "Reshape": "y = Reshape(d, shape)",
    "Transpose": "y = Transpose <perm = [1, 0, 2]> (d)",
    "Squeeze": "y = Squeeze(d, axes)",
    "Unsqueeze": "y = Unsqueeze(d, axes)",
    "Slice": "y = Slice(d, starts, ends)",
    "MaxPool": "y = MaxPool <kernel_shape = [2]> (d)",
    "MatMul and Add": "p = MatMul(d, w) y = Add(p, b)",
}


def model(body: str, kind: str = "int8", opset: int = 21) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": {opset}]>
        g (float[1,2,6] x) => (float y) <float s = {{0.5}}, {kind} z = {{0}}, int64[1] shape = {{-1}},
            float[6,2] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, float[2] b = {{1, 2}},
            int64[1] axes = {{0}}, int64[1] starts = {{0}}, int64[1] ends = {{1}}>
        {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {body} }}""")
    parsed.graph.output[0].type.tensor_type.ClearField("shape")
    return parsed


@pytest.mark.parametrize("op", MOVERS)
def test_moved_numbers_load_and_stay_the_same(op: str) -> None:
    source = model(MOVERS[op])
    x = {"x": np.linspace(-3, 3, 12, dtype=np.float32).reshape(1, 2, 6)}
    wanted = open_model(model_io.load(source), RunOptions(optimize=False)).run(x)
    graph = model_io.load(source)
    assert leave_out_zero_points(graph) == 1
    assert leave_out_zero_points(graph) == 0
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
    np.testing.assert_array_equal(open_model(graph).run(x)["y"], wanted["y"])


@pytest.mark.parametrize(
    "source",
    [
        model("y = Relu(d)"),
        model(MOVERS["Reshape"], opset=19),
        model(MOVERS["Reshape"], kind="uint8"),
        model("r = Reshape(d, shape) p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z)"),
    ],
    ids=["not moved", "older opset", "uint8", "quantized again"],
)
def test_all_others_keep_theirs(source: onnx.ModelProto) -> None:
    graph = model_io.load(source)
    assert leave_out_zero_points(graph) == 0


def test_a_zero_point_that_is_not_zero_stays() -> None:
    source = model(MOVERS["Reshape"])
    source.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.array(3, np.int8), "z"))
    assert leave_out_zero_points(model_io.load(source)) == 0
