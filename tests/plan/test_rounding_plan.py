"""Where values are rounded, and the inputs that have to stay as they are."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.helpers import build
from transforms import model_io
from transforms.convert_type import convert_type
from transforms.graph import dtypes, schemas
from transforms.plan.rounding_plan import RoundingPlan


def planned(model: onnx.ModelProto) -> set[str]:
    """Return the names of the tensors that are rounded."""
    return {
        rounding.tensor.name for rounding in RoundingPlan(model_io.load(model), dtypes.BFLOAT16).roundings
    }


def quantized(opset: int) -> onnx.ModelProto:
    """Return ``x`` through int8 and back, with scales that are not bfloat16 numbers."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], "dequantize"),
        helper.make_node("Mul", ["d", "factor"], ["y"], "mul"),
    ]
    weights = {
        "scale": np.array(0.1, np.float32),
        "zero": np.array(0, np.int8),
        "factor": np.array([2.1], np.float32),
    }
    return build.model(nodes, [build.value("x", [4])], [build.value("y", [4])], weights, opset=opset)


@pytest.mark.parametrize("opset", [13, 19, 21, 22])
def test_scales_of_a_quantization_stay(opset: int) -> None:
    assert planned(quantized(opset)) == {"x", "d", "factor", "y"}


@pytest.mark.parametrize("opset", [13, 19, 21, 22])
def test_true_bfloat16_leaves_quantize_nodes_their_scales(opset: int) -> None:
    graph = model_io.load(quantized(opset))
    convert_type(graph)
    nodes = {node.name: node for node in graph.nodes}
    assert dtypes.is_type(nodes["mul"].inputs[0], dtypes.BFLOAT16)
    for name in ("quantize", "dequantize"):
        assert nodes[name].inputs[1].values == np.float32(0.1)


def test_scales_of_resize_stay() -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], "resize", mode="nearest")
    weights = {"scales": np.array([1, 1, 1.1, 1.1], np.float32)}
    ends = [build.value("x", [1, 1, 10, 10])], [build.value("y", [1, 1, 11, 11])]
    assert planned(build.model([node], *ends, weights)) == {"x", "y"}


def test_constants_of_unknown_operators_stay() -> None:
    node = helper.make_node("Strange", ["x", "constant"], ["y"], "strange", domain="elsewhere")
    relu = helper.make_node("Mul", ["y", "constant"], ["z"], "mul")
    graph = helper.make_graph(
        [node, relu],
        "graph",
        [build.value("x", [3])],
        [build.value("z", [3])],
        [onnx.numpy_helper.from_array(np.array([0.1], np.float32), "constant")],
        value_info=[build.value("y", [3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    plan = RoundingPlan(model_io.load(model), dtypes.BFLOAT16)
    uses = {r.tensor.name: {user.name for user, _ in r.uses} for r in plan.roundings}
    assert uses == {"x": {"strange"}, "y": {"mul"}, "constant": {"mul"}, "z": set()}


@pytest.mark.parametrize(
    ("op", "index", "bound"),
    [
        ("Resize", 0, False),
        ("Resize", 2, True),
        ("QuantizeLinear", 0, False),
        ("QuantizeLinear", 1, True),
        ("DequantizeLinear", 1, True),
        ("QLinearConv", 1, True),
        ("NonMaxSuppression", 0, True),
        ("LayerNormalization", 1, False),  # a Scale, but no quantization
        ("Concat", 7, False),  # variadic
    ],
)
def test_what_a_schema_ties_to_float32(op: str, index: int, bound: bool) -> None:
    assert schemas.must_stay_float32(gs.Node(op), index, {"": 22}) is bound


def test_bits_that_are_looked_at_stay() -> None:
    cast = helper.make_node("Exp", ["x"], ["e"], "exp")
    bits = helper.make_node("BitCast", ["e"], ["y"], "bits", to=onnx.TensorProto.INT32)
    graph = helper.make_graph(
        [cast, bits], "graph", [build.value("x", [3])], [build.value("y", [3], np.int32)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=13)
    assert planned(model) == {"x"}
    graph = model_io.load(model)
    convert_type(graph)
    assert dtypes.is_type(graph.nodes[-1].inputs[0], dtypes.FLOAT)


def test_trees_see_the_numbers_that_they_were_trained_on() -> None:
    """Between two bfloat16 numbers lie thresholds: what a model is given is compared with them as it is."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]> main (float[4,1] x) => (float[4,1] y) {
            s = ai.onnx.ml.Scaler <offset = [10001.0], scale = [0.001]> (x)
            t = ai.onnx.ml.Binarizer <threshold = 0.5> (s)
            y = Exp(t)
        }""")
    assert planned(model) == {"t", "y"}
