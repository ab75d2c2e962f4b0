"""Oracle: ONNX Runtime runs the node itself; its output is W times the rows, up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import helper

from transforms.layers.linear_layer import UnsupportedLayer, layer_of
from transforms.layers.scale_blocks import can_have_blocks

CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("Conv", (2, 6, 9), (4, 6, 3), {}),
    ("Conv", (2, 6, 9), (4, 3, 3), {"group": 2, "strides": [2], "pads": [1, 2], "dilations": [2]}),
    ("Conv", (2, 4, 8, 7), (6, 4, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 3]}),
    ("Conv", (1, 6, 8, 7), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ("Conv", (1, 6, 8, 7), (12, 1, 3, 3), {"group": 6, "dilations": [2, 1]}),
    ("Conv", (2, 3, 8, 7), (5, 3, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Conv", (2, 3, 8, 7), (5, 3, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    ("Conv", (2, 3, 8, 7), (5, 3, 3, 4), {"auto_pad": "VALID"}),
    ("Conv", (1, 2, 4, 5, 6), (4, 2, 2, 3, 2), {"pads": [1, 0, 0, 0, 1, 2], "strides": [1, 2, 1]}),
    ("ConvTranspose", (2, 6, 9), (6, 4, 3), {}),
    ("ConvTranspose", (2, 6, 9), (6, 2, 3), {"group": 3, "strides": [2], "pads": [1, 0]}),
    ("ConvTranspose", (1, 4, 5, 6), (4, 3, 3, 2), {"strides": [2, 3], "output_padding": [1, 2]}),
    (
        "ConvTranspose",
        (1, 4, 5, 6),
        (4, 3, 3, 2),
        {"strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [2, 1]},
    ),
    ("ConvTranspose", (1, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    ("ConvTranspose", (1, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("ConvTranspose", (1, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ("ConvTranspose", (1, 2, 3, 4, 2), (2, 3, 2, 3, 2), {"strides": [1, 2, 2], "pads": [0, 1, 0, 1, 0, 0]}),
]
PRODUCTS: list[tuple[str, tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = [
    ("MatMul", (2, 3, 5), (5, 4), 1, {}),
    ("MatMul", (5,), (5, 4), 1, {}),
    ("MatMul", (2, 3, 5), (5,), 1, {}),
    ("MatMul", (2, 3, 5), (1, 5, 4), 1, {}),
    ("MatMul", (2, 5, 3), (4, 5), 0, {}),
    ("MatMul", (5,), (4, 5), 0, {}),
    ("MatMul", (2, 5, 3), (5,), 0, {}),
    ("MatMul", (2, 3, 5), (2, 5, 4), 1, {}),
    ("MatMul", (3, 5), (2, 5, 4), 1, {}),
    ("MatMul", (5,), (2, 5, 4), 1, {}),
    ("MatMul", (2, 3, 4, 5), (2, 1, 5, 6), 1, {}),
    ("MatMul", (2, 1, 4, 5), (3, 5, 6), 1, {}),
    ("MatMul", (4, 1, 3, 2, 5), (2, 1, 5, 6), 1, {}),
    ("MatMul", (3, 2, 5, 1), (2, 4, 5), 0, {}),
    ("MatMul", (5, 3), (2, 4, 5), 0, {}),
    ("MatMul", (5,), (2, 4, 5), 0, {}),
    ("MatMul", (5,), (1, 4, 5), 0, {}),
    ("MatMul", (5,), (5,), 0, {}),
    ("MatMul", (5,), (5,), 1, {}),
    ("Gemm", (3, 5), (5, 4), 1, {}),
    ("Gemm", (3, 5), (4, 5), 1, {"transB": 1, "alpha": 0.5}),
    ("Gemm", (5, 3), (5, 4), 1, {"transA": 1, "alpha": -2.0}),
    ("Gemm", (5, 3), (4, 5), 0, {}),
    ("Gemm", (5, 3), (5, 4), 0, {"transA": 1}),
    ("Gemm", (3, 5), (4, 5), 0, {"transB": 1}),
    ("Gemm", (3, 5), (5, 4), 0, {"transA": 1, "transB": 1}),
]
CASES = [(op, x, w, 1, attrs) for op, x, w, attrs in CONVOLUTIONS] + PRODUCTS


def _run(node: onnx.NodeProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    kind = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(n, kind, v.shape) for n, v in feed.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


def _case(op: str, x: Any, w: Any, index: int, attrs: dict[str, Any]) -> tuple[Any, ...]:
    random = np.random.default_rng(1)
    inputs, weight = (random.standard_normal(shape).astype(np.float32) for shape in (x, w))
    names = ["x", "w"] if index else ["w", "x"]
    made = _run(helper.make_node(op, names, ["y"], **attrs), {"x": inputs, "w": weight})
    return layer_of(gs.Node(op, attrs=attrs), weight.shape, index), inputs, weight, made


@pytest.mark.parametrize(("op", "x", "w", "index", "attrs"), CASES)
def test_outputs_are_weights_times_rows(op: str, x: Any, w: Any, index: int, attrs: dict[str, Any]) -> None:
    layer, inputs, weight, made = _case(op, x, w, index, attrs)
    packed = layer.pack(weight)
    assert packed.shape == layer.size
    rows, outputs = layer.rows(inputs, made.shape), layer.outputs(made)
    assert rows.shape[1] == outputs.shape[1] == layer.count(made.shape)
    flat = packed.reshape(*packed.shape[:2], -1)
    # float32 sums of at most 100 products of normal numbers
    assert np.abs(np.einsum("gnk,grk->grn", flat, rows) - outputs).max() < 1e-4


@pytest.mark.parametrize(("op", "x", "w", "index", "attrs"), CASES)
def test_picked_rows_are_those_of_all(op: str, x: Any, w: Any, index: int, attrs: dict[str, Any]) -> None:
    layer, inputs, _, made = _case(op, x, w, index, attrs)
    picked = np.arange(layer.count(made.shape))[::-2]
    assert np.array_equal(layer.rows(inputs, made.shape, picked), layer.rows(inputs, made.shape)[:, picked])
    assert np.array_equal(layer.outputs(made, picked), layer.outputs(made)[:, picked])


@pytest.mark.parametrize(("op", "x", "w", "index", "attrs"), CASES)
def test_what_is_beyond_the_input_is_what_it_is_told_to_be(
    op: str, x: Any, w: Any, index: int, attrs: dict[str, Any]
) -> None:
    """Rows of integers around a zero point are, less that, rows of integers around 0."""
    layer, inputs, _, made = _case(op, x, w, index, attrs)
    stored = np.rint(inputs)  # whole numbers: sums with 7 are exact
    rows, expected = layer.rows(stored + 7, made.shape, outside=7), layer.rows(stored, made.shape)
    assert np.array_equal(rows - layer.gain * 7, expected)


@pytest.mark.parametrize(("op", "x", "w", "index", "attrs"), CASES)
def test_weights_come_back_from_their_packed_form(
    op: str, x: Any, w: Any, index: int, attrs: dict[str, Any]
) -> None:
    layer, _, weight, _ = _case(op, x, w, index, attrs)
    back = layer.unpack(layer.pack(weight).copy())
    assert back.shape == weight.shape and np.array_equal(back, weight)


@pytest.mark.parametrize(("op", "x", "w", "index", "attrs"), CASES)
def test_a_number_for_each_output_meets_its_output(
    op: str, x: Any, w: Any, index: int, attrs: dict[str, Any]
) -> None:
    layer, _, _, made = _case(op, x, w, index, attrs)
    groups, outputs = layer.size[:2]
    numbers = np.arange(groups * outputs, dtype=np.float32)
    shifted = made + numbers.reshape(layer.channel_shape(made.ndim))
    assert shifted.shape == made.shape
    difference = layer.outputs(shifted).astype(np.float64) - layer.outputs(made)
    assert np.allclose(difference, numbers.reshape(groups, 1, outputs), atol=1e-4)


@pytest.mark.parametrize(
    ("op", "shape", "index", "axis", "fits"),
    [
        ("Conv", (4, 2, 3, 3), 1, 0, True),
        ("Conv", (4, 2, 3, 3), 1, 1, False),
        ("ConvTranspose", (4, 2, 3, 3), 1, 1, True),
        ("ConvTranspose", (4, 2, 3, 3), 1, 0, False),
        ("MatMul", (4, 2), 1, 1, True),
        ("MatMul", (4, 2), 1, -1, True),
        ("MatMul", (4, 2), 1, 0, False),
        ("MatMul", (4, 2), 0, 0, True),
        ("MatMul", (4, 2), 1, None, True),
        ("MatMul", (4,), 1, 0, False),
        ("MatMul", (3, 4, 2), 1, 2, True),
        ("MatMul", (3, 4, 2), 0, 1, True),
        ("MatMul", (3, 4, 2), 1, 0, False),
    ],
)
def test_scales_along_the_axis_of_outputs(op: str, shape: Any, index: int, axis: Any, fits: bool) -> None:
    assert layer_of(gs.Node(op), shape, index).channels(axis) is fits


@pytest.mark.parametrize(
    ("op", "shape", "index", "attrs"),
    [
        ("MatMul", (3, 4, 2), 1, {}),
        ("MatMul", (3, 2, 4), 0, {}),
        ("ConvTranspose", (6, 2, 3), 1, {"group": 3}),
        ("Conv", (6, 2, 3), 1, {"group": 3}),
        ("Conv", (3, 1, 3), 1, {"group": 3}),
        ("MatMul", (4, 2), 1, {}),
    ],
)
def test_scales_meet_their_outputs(op: str, shape: Any, index: int, attrs: dict[str, Any]) -> None:
    """Each number of the weight is the number of its scale."""
    layer = layer_of(gs.Node(op, attrs=attrs), shape, index)
    axis = layer.output_axis % len(shape)
    scale = np.arange(shape[axis])
    numbers = np.broadcast_to(scale.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)
    packed = layer.pack(np.ascontiguousarray(numbers))
    assert (packed == layer.spread(scale).reshape(*packed.shape[:2], 1, 1)).all()
    assert layer.spread(np.float32(3)).shape == ()


@pytest.mark.parametrize(
    ("op", "shape", "index", "reason"),
    [
        ("Conv", (3, 4, 2), 0, "data are a constant"),
        ("MatMul", (), 1, "is a scalar or empty"),
        ("Gemm", (0, 3), 1, "is a scalar or empty"),
    ],
)
def test_what_is_no_such_problem(op: str, shape: Any, index: int, reason: str) -> None:
    with pytest.raises(UnsupportedLayer, match=reason):
        layer_of(gs.Node(op), shape, index)


@pytest.mark.parametrize(
    ("op", "shape", "index", "attrs"),
    [
        ("MatMul", (8, 4), 1, {}),
        ("MatMul", (4, 8), 0, {}),
        ("Gemm", (4, 8), 1, {"transB": 1}),
        ("Conv", (4, 8, 3, 3), 1, {}),
        ("Conv", (8, 4, 3), 1, {"group": 2}),
        ("ConvTranspose", (8, 4, 3), 1, {}),
        ("ConvTranspose", (6, 4, 3), 1, {"group": 3}),
    ],
)
def test_blocks_are_of_the_inputs_of_one_output(
    op: str, shape: Any, index: int, attrs: dict[str, Any]
) -> None:
    """Oracle: numbers of blocks of four, in the rows of the layer's matrices."""
    layer = layer_of(gs.Node(op, attrs=attrs), shape, index)
    for axis in range(len(shape)):
        places = np.indices(shape)
        places[axis] //= 4
        packed = layer.pack(np.ravel_multi_index(tuple(places), shape))
        rows = [set(row) for row in packed.reshape(-1, packed.shape[-1]).tolist()]
        assert can_have_blocks(layer, axis) == (sum(map(len, rows)) == len(set().union(*rows)))
    assert not can_have_blocks(layer, None)
