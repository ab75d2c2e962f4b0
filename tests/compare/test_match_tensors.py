"""Oracle: graphs written by hand in the forms in which conversions write a rounding."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from transforms.compare.match_tensors import Match, match_tensors
from transforms.compare.node_formats import rounded_format
from transforms.graph.dtypes import BFLOAT16, FLOAT, FLOAT16

CONTRIB = "ai.onnx.contrib"


def float_graph() -> gs.Graph:
    """x -> Conv(w) -> y -> Relu -> z."""
    x, y, z = (gs.Variable(name, np.float32, [1, 4]) for name in "xyz")
    w = gs.Constant("w", np.ones((4, 4), np.float32))
    nodes = [
        gs.Node("Conv", "conv", inputs=[x, w], outputs=[y]),
        gs.Node("Relu", "relu", inputs=[y], outputs=[z]),
    ]
    return gs.Graph(nodes, [x], [z], opset=17)


def low(name: str, dtype: object = BFLOAT16) -> gs.Variable:
    return gs.Variable(name, dtype, [1, 4])


def wide(name: str) -> gs.Variable:
    return gs.Variable(name, np.float32, [1, 4])


def cast(source: gs.Tensor, target: gs.Tensor, to: int) -> gs.Node:
    return gs.Node("Cast", inputs=[source], outputs=[target], attrs={"to": to})


def linear(op: str, source: gs.Tensor, target: gs.Tensor, zero: np.ndarray, domain: str = "") -> gs.Node:
    scale = gs.Constant(f"{target.name}_scale", np.array(0.5, np.float32))
    inputs = [source, scale, gs.Constant(f"{target.name}_zero", np.array(zero))]
    return gs.Node(op, inputs=inputs, outputs=[target], domain=domain)


def matched(quantized: gs.Graph) -> dict[str, Match]:
    return {match.name: match for match in match_tensors(float_graph(), quantized)[0]}


def names(match: Match) -> tuple[str | None, str, str]:
    return (match.unrounded, match.rounded, match.format)


def quantized_graph(pair: list[gs.Node], y: gs.Tensor, y_read: gs.Tensor, extra: tuple = ()) -> gs.Graph:
    """The float graph with a pair between Conv and Relu; ``extra`` stands in front of the Conv."""
    x, z = wide("x"), wide("z")
    w = gs.Constant("w", np.ones((4, 4), np.float32))
    conv, relu = (
        gs.Node("Conv", "conv", inputs=[x, w], outputs=[y]),
        gs.Node("Relu", "relu", inputs=[y_read], outputs=[z]),
    )
    return gs.Graph([*extra, conv, *pair, relu], [x], [z], opset=17)


def test_models_that_are_equal() -> None:
    matches, missing = match_tensors(float_graph(), float_graph())
    assert [(m.name, m.layer, m.op, m.is_weight, m.format) for m in matches] == [
        ("x", "x", "input", False, "float32"),
        ("w", "conv", "Conv", True, "float32"),
        ("y", "conv", "Conv", False, "float32"),
        ("z", "relu", "Relu", False, "float32"),
    ]
    assert missing == [] and all(m.unrounded is None for m in matches)


@pytest.mark.parametrize(
    ("to", "kind", "name"), [(BFLOAT16, BFLOAT16, "bfloat16"), (FLOAT16, np.float16, "float16")]
)
def test_pair_of_casts(to: int, kind: object, name: str) -> None:
    y, half, back = wide("y"), low("y_half", kind), wide("y_float32")
    found = matched(quantized_graph([cast(y, half, to), cast(half, back, FLOAT)], y, back))
    assert names(found["y"]) == ("y", "y_float32", name)


def test_clip_in_front_of_the_pair() -> None:
    y, clipped, half, back = wide("y"), wide("y_clipped"), low("y_bf16"), wide("y_float32")
    clip = gs.Node("Clip", inputs=[y], outputs=[clipped])
    found = matched(quantized_graph([clip, cast(clipped, half, BFLOAT16), cast(half, back, FLOAT)], y, back))
    assert names(found["y"]) == ("y", "y_float32", "bfloat16")


@pytest.mark.parametrize(
    ("prefix", "domain", "zero", "name"),
    [
        ("", "", np.int8(0), "int8"),
        ("", "", np.uint16(0), "uint16"),
        ("Extended", CONTRIB, np.int16(0), "int16"),
    ],
)
def test_quantize_and_dequantize(prefix: str, domain: str, zero: np.ndarray, name: str) -> None:
    y, code, back = wide("y"), low("y_code", zero.dtype), wide("y_back")
    pair = [
        linear(f"{prefix}QuantizeLinear", y, code, zero, domain),
        linear(f"{prefix}DequantizeLinear", code, back, zero, domain),
    ]
    assert names(matched(quantized_graph(pair, y, back))["y"]) == ("y", "y_back", name)


@pytest.mark.parametrize(
    ("op", "attrs", "name"),
    [
        ("BFPQuantizeDequantize", {}, "bfp16"),
        ("BFPQuantizeDequantize", {"bfp_method": "to_bfp_prime", "block_size": 16}, "mx9"),
        (
            "BFPQuantizeDequantize",
            {"bfp_method": "to_bfp_prime_shared", "bit_width": 11, "block_size": 16},
            "mx4",
        ),
        ("BFPQuantizeDequantize", {"bit_width": 12}, "BFPQuantizeDequantize bit_width=12"),
        ("MXQuantizeDequantize", {}, "mxint8"),
        ("MXQuantizeDequantize", {"element_dtype": "fp8_e4m3"}, "mxfp8_e4m3"),
        ("MXQuantizeDequantize", {"element_dtype": "fp4_e2m1"}, "mxfp4"),
    ],
)
def test_block_formats(op: str, attrs: dict, name: str) -> None:
    y, rounded = wide("y"), wide("y_q")
    node = gs.Node(op, inputs=[y], outputs=[rounded], attrs=attrs, domain=CONTRIB)
    assert names(matched(quantized_graph([node], y, rounded))["y"]) == ("y", "y_q", name)


def test_output_that_keeps_its_name_for_the_rounded_value() -> None:
    y, raw, half, z = wide("y"), wide("z_raw"), low("z_bf16"), wide("z")
    nodes = [
        gs.Node("Conv", inputs=[wide("x")], outputs=[y]),
        gs.Node("Relu", inputs=[y], outputs=[raw]),
        cast(raw, half, BFLOAT16),
        cast(half, z, FLOAT),
    ]
    found = matched(gs.Graph(nodes, [], [z], opset=17))
    assert names(found["z"]) == ("z_raw", "z", "bfloat16")


def test_true_bfloat16_under_its_derived_name() -> None:
    y, z = low("y_bf16"), wide("z")
    z_low = low("z_bf16")
    nodes = [
        gs.Node("Conv", inputs=[low("x_bf16")], outputs=[y]),
        gs.Node("Relu", inputs=[y], outputs=[z_low]),
        cast(z_low, z, FLOAT),
    ]
    found = matched(gs.Graph(nodes, [], [z], opset=17))
    assert names(found["y"]) == (None, "y_bf16", "bfloat16")
    assert names(found["z"]) == (None, "z", "bfloat16")


def test_weight_stored_narrow_with_its_way_back() -> None:
    y, back = wide("y"), wide("w_back")
    stored = gs.Constant("w_quantized", np.ones((4, 4), np.int8))
    graph = gs.Graph(
        [
            linear("DequantizeLinear", stored, back, np.int8(0)),
            gs.Node("Conv", inputs=[wide("x"), back], outputs=[y]),
        ],
        [],
        [y],
        opset=17,
    )
    weight = matched(graph)["w"]
    assert names(weight) == (None, "w_back", "int8") and weight.is_weight


def test_tensors_without_a_counterpart() -> None:
    graph = float_graph()
    graph.nodes[0].outputs[0].name = "something_else"
    assert match_tensors(float_graph(), graph)[1] == ["y"]


def test_integers_scalars_and_unknown_types_are_left_out() -> None:
    graph = float_graph()
    shape = gs.Constant("shape", np.array([4, 1]))
    one = gs.Constant("one", np.array(1, np.float32))
    untyped = gs.Variable("u")
    graph.nodes.append(gs.Node("Reshape", inputs=[graph.outputs[0], shape, one], outputs=[untyped]))
    assert {match.name for match in match_tensors(graph, graph)[0]} == set("xwyz")


def test_other_nodes_round_to_nothing() -> None:
    assert (
        rounded_format(gs.Node("Relu")) == "" and rounded_format(gs.Node("Cast", attrs={"to": FLOAT})) == ""
    )


@pytest.mark.parametrize(
    ("op", "attributes", "name"),
    [
        ("BFPQuantizeDequantize", {"axis": 1}, "bfp16"),
        ("BFPQuantizeDequantize", {"block_size": 32, "axis": 1}, "BFPQuantizeDequantize block_size=32"),
        (
            "BFPQuantizeDequantize",
            {"bfp_method": "to_bfp_prime"},
            "BFPQuantizeDequantize bfp_method=to_bfp_prime",
        ),
        (
            "MXQuantizeDequantize",
            {"element_dtype": "fp4_e2m1", "block_size": 16},
            "MXQuantizeDequantize element_dtype=fp4_e2m1 block_size=16",
        ),
    ],
)
def test_block_formats_are_named_after_their_blocks_too(op: str, attributes: dict, name: str) -> None:
    """By definition of the operators: missing attributes have defaults, other blocks are another format."""
    assert rounded_format(gs.Node(op, "node", attrs=attributes)) == name


def test_a_node_that_its_operator_refuses_is_named() -> None:
    node = gs.Node("MXQuantizeDequantize", "node1", attrs={"block_size": 0})
    with pytest.raises(ValueError, match="node 'node1': MXQuantizeDequantize: block_size is 0, legal are"):
        rounded_format(node)
