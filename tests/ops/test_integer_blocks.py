"""Oracles: NumPy, index by index, and ONNX Runtime's DequantizeLinear with blocks."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from ops import FORMATS
from ops.block_scales import range_block_parameters, signed_block_scales
from ops.integer_blocks import (
    block_parameters,
    block_rows,
    dequantize_blocks,
    pack_numbers,
    quantize_blocks,
    scale_shape,
)

KINDS = ("int2", "uint2", "int4", "uint4", "int8", "uint8")
SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


def _wide(part: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray:
    return np.take(part, np.arange(shape[axis]) // block, axis)


@settings(max_examples=60, deadline=None)
@given(
    SHAPES, st.integers(0, 3), st.integers(1, 9), st.sampled_from(KINDS), st.booleans(), st.integers(0, 99)
)
def test_arithmetic_is_that_of_each_block(
    shape: tuple[int, ...], axis: int, block: int, kind: str, negative: bool, seed: int
) -> None:
    random, fmt = np.random.default_rng(seed), FORMATS[kind]
    axis %= len(shape)
    given_axis = axis - len(shape) if negative else axis
    x = random.standard_normal(shape).astype(np.float32)
    scales = scale_shape(shape, given_axis, block)
    assert scales == tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape))
    scale = random.uniform(0.05, 0.5, scales).astype(np.float32)
    zero = random.integers(int(fmt.lowest), int(fmt.highest) + 1, scales)
    wide_scale, wide_zero = (_wide(part, shape, axis, block) for part in (scale, zero))
    expected = np.clip(np.rint(x / wide_scale) + wide_zero, fmt.lowest, fmt.highest)
    q = quantize_blocks(x, (scale, zero.astype(fmt.dtype)), fmt, given_axis, block)
    assert q.dtype == fmt.dtype
    np.testing.assert_array_equal(q.astype(np.float64), expected)
    numbers = dequantize_blocks(q, (scale, zero.astype(fmt.dtype)), given_axis, block)
    np.testing.assert_array_equal(numbers, (expected - wide_zero).astype(np.float32) * wide_scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axis"), [((70, 5), 0), ((5, 33), 1), ((3, 65, 2, 2), 1), ((2, 40, 3), 1)])
def test_runtime_dequantizes_the_same(kind: str, shape: tuple[int, ...], axis: int) -> None:
    random, fmt = np.random.default_rng(0), FORMATS[kind]
    x = random.standard_normal(shape).astype(np.float32)
    parameters = block_parameters(x, fmt, axis, 32, symmetric=fmt.is_signed)
    q = quantize_blocks(x, parameters, fmt, axis, 32)
    names = {"q": q, "s": parameters[0], "z": parameters[1]}
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=axis, block_size=32),
            helper.make_node("Add", ["w", "a"], ["y"]),
        ],
        "graph",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in names.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run(None, {"a": np.zeros(1, np.float32)})
    np.testing.assert_array_equal(found, dequantize_blocks(q, parameters, axis, 32))
    steps = np.abs(found - x) / _wide(parameters[0], shape, axis, 32)
    assert steps.max() <= 0.5 + 1e-4 if fmt.is_signed else steps.max() <= 1  # a zero point is rounded, too


def test_scales_are_those_of_least_error_in_each_block() -> None:
    """Oracle: ops.block_scales, block by block."""
    random = np.random.default_rng(1)
    w, importance = random.standard_normal((7, 10)).astype(np.float32), random.random((7, 1))
    found = {
        name: block_parameters(
            w, FORMATS[name], 0, 3, symmetric=name == "int4", method="MSE", importance=importance
        )
        for name in ("int4", "uint4")
    }
    assert found["int4"][0].shape == (3, 10) and not found["int4"][1].astype(int).any()
    padded = (np.pad(part, ((0, 2), (0, 0))).astype(np.float32) for part in (w, importance))
    rows, counts = (part.reshape(3, 3, -1) for part in padded)
    for i, j in np.ndindex(3, 10):
        own = rows[i, :, j][None], counts[i, :, 0][None]
        assert found["int4"][0][i, j] == signed_block_scales(own[0], FORMATS["int4"], own[1])
        scale, zero = range_block_parameters(own[0], FORMATS["uint4"], own[1])
        assert (found["uint4"][0][i, j], found["uint4"][1][i, j]) == (scale, zero)


def test_rows_are_padded_with_zeros() -> None:
    rows = block_rows(np.arange(1, 11).reshape(2, 5), 1, 3)
    np.testing.assert_array_equal(rows, [[1, 2, 3], [4, 5, 0], [6, 7, 8], [9, 10, 0]])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 20), st.sampled_from([2, 4, 8]), st.integers(0, 99))
def test_numbers_are_packed_from_the_low_bits_on(rows: int, length: int, bits: int, seed: int) -> None:
    """Oracle: the bits of a row as one number, taken apart again."""
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, (rows, length)).astype(np.uint8)
    packed = pack_numbers(numbers, bits)
    assert packed.shape == (rows, -(-length * bits // 8)) and packed.dtype == np.uint8
    for row, bytes_of_row in zip(numbers, packed, strict=True):
        whole = int.from_bytes(bytes_of_row.tobytes(), "little")
        assert [(whole >> bits * i) & ((1 << bits) - 1) for i in range(length)] == row.tolist()
        assert whole >> bits * length == 0
