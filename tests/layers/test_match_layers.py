"""Oracle: the models are built here, so that it is known which layer stands for which."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

import ops
from ops.grids import weight_grid
from tests.helpers import build, tunable
from tests.helpers.operator_sessions import BFP, MX, assert_same, block_session
from transforms.graph import walk
from transforms.layers.match_layers import match_layers
from transforms.layers.stored_constant import candidate_formats, detect
from transforms.scheme import preset

CONV, MATMUL = tunable.conv_net(), tunable.matmul_net()
CONV_DATA, MATMUL_DATA = tunable.samples(CONV), tunable.samples(MATMUL)

FORMATS = {
    **{
        "A8W8": "int8",
        "XINT8": "int8",
        "U8S8": "int8",
        "A16W8": "int8",
        "W4A8": "int4 int8",
        "BF16": "bfloat16",
        "FP16": "float16",
    },
    **{"BFP16": "bfp16", "MX6": "mx6", "MX9": "mx9", "MXINT8": "mxint8", "MXFP8E4M3": "mxfp8_e4m3"},
    "MXFP4E2M1": "mxfp4",
}


@pytest.mark.parametrize("name", tunable.PRESETS)
@pytest.mark.parametrize("changes", [{}, {"keep_weight_nodes": True}])
def test_every_layer_is_found_with_its_format(name: str, changes: dict[str, bool]) -> None:
    float_graph, quantized = tunable.pair(CONV, name, CONV_DATA, saturation="ignore", **changes)
    layers, left = match_layers(float_graph, quantized)
    assert not left
    assert [layer.name for layer in layers] == ["conv", "depthwise", "transposed", "dense"]
    assert {layer.weight.format.name for layer in layers if layer.weight.format} == set(FORMATS[name].split())


@pytest.mark.parametrize("name", tunable.PRESETS)
def test_float_weights_and_biases_are_those_of_the_model(name: str) -> None:
    float_graph, quantized = tunable.pair(CONV, name, CONV_DATA)
    layers, _ = match_layers(float_graph, quantized)
    by_name = {node.name: node for node in float_graph.nodes}
    for layer in layers:
        original = by_name[layer.name]
        assert np.array_equal(layer.layer.unpack(layer.float_weight), original.inputs[1].values)
        if len(original.inputs) > 2:
            assert np.allclose(layer.float_bias.reshape(-1), original.inputs[2].values)
        else:
            assert layer.bias is not None and layer.bias.stored is None


@pytest.mark.parametrize("name", ["A8W8", "XINT8", "U8S8", "BF16", "MX6"])
def test_the_bias_of_a_product_is_that_of_the_addition(name: str) -> None:
    float_graph, quantized = tunable.pair(MATMUL, name, MATMUL_DATA)
    layers, left = match_layers(float_graph, quantized)
    assert not left and [layer.name for layer in layers] == ["first", "second"]
    first, second = layers
    assert first.target == "a1" and first.bias is not None and first.bias.node.op == "Add"
    assert np.allclose(first.float_bias[0], _constant(float_graph, "b1"))
    assert second.target == "y" and (second.bias is None) == (name == "BF16")


@pytest.mark.parametrize("as_", ["qdq", "cast"])
def test_bfloat16_as_casts_or_pairs(as_: str) -> None:
    float_graph, quantized = tunable.pair(CONV, "BF16", CONV_DATA, bfloat16_as=as_)
    layers, left = match_layers(float_graph, quantized)
    assert len(layers) == 4 and not left
    for layer in layers:
        assert np.array_equal(layer.weight.values(), _bfloat16(layer.layer.unpack(layer.float_weight)))


def _bfloat16(values: np.ndarray) -> np.ndarray:
    return ops.from_bfloat16(ops.to_bfloat16(values))


def _constant(graph: gs.Graph, name: str) -> np.ndarray:
    return next(np.asarray(tensor.values) for tensor in walk.constants(graph) if tensor.name == name)


def _reason(float_graph: gs.Graph, quantized: gs.Graph, name: str) -> str:
    _, left = match_layers(float_graph, quantized)
    return next(one.reason for one in left if one.name == name)


def test_a_layer_that_stayed_float_is_left_alone() -> None:
    pair = tunable.pair(CONV, "A8W8", CONV_DATA, exclude_nodes=("depthwise",))
    assert _reason(*pair, "depthwise") == "its weight is float32"


def test_a_layer_of_two_constants_is_left_alone() -> None:
    float_graph, quantized = tunable.pair(CONV, "MX6", [])
    node = next(node for node in quantized.nodes if node.name == "dense")
    node.inputs[0] = gs.Constant("stored", np.ones((1, 16), np.float32))
    assert _reason(float_graph, quantized, "dense") == "its input is a constant, too"


def test_a_product_of_two_computed_tensors_is_left_alone() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["y"], "square"),
    ]
    model = build.model(nodes, [build.value("x", ["n", 7, 16])], [build.value("y", ["n", 7, 7])])
    pair = tunable.pair(model, "MX6", [])
    assert _reason(*pair, "square") == "both operands are computed"


def test_a_bias_that_is_computed_is_named() -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "x"], ["y"], "dense")]
    weights = {"w": np.eye(4, dtype=np.float32)}
    model = build.model(nodes, [build.value("x", ["n", 4])], [build.value("y", ["n", 4])], weights)
    assert _reason(*tunable.pair(model, "MX6", []), "dense") == "its bias: it is computed"


@pytest.mark.parametrize("op", ["QLinearConv", "MatMulInteger", "DynamicQuantizeMatMul"])
def test_operators_of_integers_are_left_alone(op: str) -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", CONV_DATA)
    node = next(node for node in quantized.nodes if node.name == "dense")
    node.op = op
    assert _reason(float_graph, quantized, "dense") == "it is an integer operator"


def test_a_layer_of_another_model_is_left_alone() -> None:
    _, quantized = tunable.pair(CONV, "A8W8", CONV_DATA)
    other, _ = tunable.pair(tunable.conv_net(seed=5), "A8W8", CONV_DATA)
    layers, left = match_layers(other, quantized)
    assert not layers
    assert {one.reason for one in left} == {"its weight is not a rounding of the float layer's"}


def test_a_layer_without_a_namesake_is_left_alone() -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", CONV_DATA)
    node = next(node for node in quantized.nodes if node.name == "dense")
    node.name, node.outputs[0].name = "another", "something"
    assert _reason(float_graph, quantized, "another") == "the float model has no layer of its name"


def test_a_weight_of_another_shape_is_left_alone() -> None:
    float_graph, quantized = tunable.pair(CONV, "MX6", CONV_DATA)
    weight = next(node for node in float_graph.nodes if node.name == "dense").inputs[1]
    weight.values = np.zeros((4, 6), np.float32)
    assert _reason(float_graph, quantized, "dense") == "its weight is [5, 6], that of the float layer [4, 6]"


def test_a_weight_that_others_read_is_left_alone() -> None:
    float_graph, quantized = tunable.pair(CONV, "MX6", CONV_DATA)
    node = next(node for node in quantized.nodes if node.name == "dense")
    node.outputs.append(gs.Variable("more"))
    quantized.nodes.append(gs.Node("Identity", "reader", inputs=[node.inputs[1]], outputs=[gs.Variable("z")]))
    assert _reason(float_graph, quantized, "dense") == "its weight: other nodes read it, too"


def test_nodes_without_names_are_found_by_their_outputs() -> None:
    model = tunable.conv_net()
    for node in model.graph.node:
        node.name = ""
    layers, left = match_layers(*tunable.pair(model, "A8W8", CONV_DATA))
    assert len(layers) == 4 and not left


@pytest.mark.parametrize(
    "name", ["bfp16", "mx4", "mx6", "mx9", "mxint8", "mxfp8_e4m3", "mxfp6_e3m2", "mxfp4"]
)
def test_numbers_tell_their_block_format(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    stored = ops.quantize_dequantize(values, name, 1)
    found = detect(stored, candidate_formats(gs.Graph()), 1)
    assert found is not None and found.bits <= ops.FORMATS[name].bits
    assert np.array_equal(ops.quantize_dequantize(stored, found, 1), stored)
    assert found.name == name or name == "mx9"  # whose numbers BFP16 holds, too, at the same size


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_lowest_number_of_mxint8_does_not_hide_it(axis: int) -> None:
    """-1.999 is rounded to -128/64, which the format would give the next exponent, and all others with it."""
    values = np.random.default_rng(0).uniform(-1, 1, (40, 70)).astype(np.float32)
    values[5, ::3], values[::3, 6] = -1.999, -1.999
    stored = ops.quantize_dequantize(values, "mxint8", axis)
    assert (stored == -2).any() and (ops.quantize_dequantize(stored, "mxint8", axis) != stored).any()
    rows = candidate_formats(gs.Graph())
    found = detect(stored, rows, axis)
    assert found is not None and found.name == "mxint8"
    stored[stored == -2] = 2  # which there is not
    assert detect(stored, [ops.FORMATS["mxint8"]], axis) is None


def test_float_numbers_are_of_no_format() -> None:
    values = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    assert detect(values, candidate_formats(gs.Graph()), 1) is None


@pytest.mark.parametrize("name", ["BFP16", "MX6", "MXFP4E2M1"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"bfp_method": "to_bfp_prime"},
        {"bit_width": 13},
        {"bfp_method": "to_bfp", "bit_width": 13},
        {"bit_width": 12, "block_size": 4, "rounding_mode": 1},
        {"element_dtype": "fp4_e2m1", "block_size": 16},
        {},
    ],
)
def test_weights_have_the_grid_of_their_node_whatever_it_leaves_out(name: str, attributes: dict) -> None:
    """Oracle: the operator. It gives the values, and leaves what is rounded to the grid as it is."""
    float_graph, quantized = tunable.pair(CONV, name, CONV_DATA, keep_weight_nodes=True)
    op = MX if "element_dtype" in attributes else BFP
    for node in walk.nodes(quantized):
        if node.op in (BFP, MX):
            node.op, axis = op, node.attrs["axis"]
            node.attrs = {**attributes, "axis": axis}
    layers, left = match_layers(float_graph, quantized)
    assert len(layers) == 4 and not left
    for layer in layers:
        stored = layer.weight
        session = block_session(op, {**attributes, "axis": stored.float_axis})
        weights = np.asarray(stored.source.values, np.float32)
        assert_same(stored.values(), session.run(None, {"x": weights})[0])
        assert stored.format is not None
        block = weight_grid(weights.reshape(len(weights), 1, -1), stored.format)
        rounded = block.round(weights.reshape(len(weights), -1).astype(np.float64)).astype(np.float32)
        assert_same(block_session(op, {**attributes, "axis": 1}).run(None, {"x": rounded})[0], rounded)


def test_formats_that_the_model_was_quantized_to_are_looked_for_first() -> None:
    """Numbers of a coarse format of one's own lie on grids of the table, too: who quantized knows which."""
    changes = {
        "formats": {"own": {"base": "bfp16", "bit_width": 11}},
        "weight": "own",
        "activation": "float32",
    }
    model = tunable.matmul_net()
    float_graph, quantized = tunable.pair(model, "BFP16", tunable.samples(model, 4), **changes)
    formats = preset("BFP16").with_(**changes).named_formats
    for handed_in in ((), formats):
        layers, left = match_layers(float_graph, quantized, handed_in)
        assert not left
        found = {layer.weight.format.name for layer in layers if layer.weight.format}
        assert (found == {"own"}) == bool(handed_in)
