"""bfloat16 arrays. Oracle: ml_dtypes, which rounds bfloat16 correctly; NumPy for float16."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ops
from tests.helpers.operator_sessions import BFLOAT16, assert_same

EVERY_HALF = np.arange(2**16, dtype=np.uint32).astype(np.uint16)


def test_from_every_float16() -> None:
    x = EVERY_HALF.view(np.float16)
    with np.errstate(invalid="ignore"):
        assert_same(ops.to_bfloat16(x), x.astype(np.float32).astype(BFLOAT16))


def test_back_from_every_bfloat16() -> None:
    x = EVERY_HALF.view(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore", over="ignore"):
        assert_same(ops.from_bfloat16(x), x.astype(np.float32))
        assert_same(ops.from_bfloat16(x, np.float16), x.astype(np.float32).astype(np.float16))


def test_shapes_and_layouts() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 7), np.float32)
    for array in (x, x.T, x[::2, ::-1], x[:0], x[0, 0, 0], np.asfortranarray(x)):
        rounded = ops.to_bfloat16(array)
        assert rounded.shape == np.shape(array)
        assert_same(rounded, np.asarray(array).astype(BFLOAT16))
        assert_same(ops.from_bfloat16(rounded), rounded.astype(np.float32))


def test_read_only_input_is_accepted() -> None:
    x = np.ones(4, np.float32)
    x.flags.writeable = False
    assert ops.to_bfloat16(x).astype(np.float32).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("x", [np.ones(2), np.ones(2, np.int32)])
def test_other_types(x: np.ndarray) -> None:
    with pytest.raises(ValueError, match="cannot be rounded to bfloat16, legal are float32 and float16"):
        ops.to_bfloat16(x)
    with pytest.raises(ValueError, match="legal is bfloat16"):
        ops.from_bfloat16(x)
    with pytest.raises(ValueError, match="legal are float32 and float16"):
        ops.from_bfloat16(np.ones(2, BFLOAT16), x.dtype)


@pytest.mark.exhaustive
def test_every_float32() -> None:
    """All 2^32 patterns, in pieces: ``pytest -m exhaustive``."""
    piece = 1 << 24
    different = 0
    for start in range(0, 2**32, piece):
        x = np.arange(start, start + piece, dtype=np.uint64).astype(np.uint32).view(np.float32)
        with np.errstate(invalid="ignore"):
            expected = x.astype(BFLOAT16).view(np.uint16)
        y = ops.to_bfloat16(x).view(np.uint16)
        both_nan = ((y & 0x7FFF) > 0x7F80) & ((expected & 0x7FFF) > 0x7F80)
        different += int(((y != expected) & ~both_nan).sum())
    assert different == 0
