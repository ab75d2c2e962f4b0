"""Sums over channels. Oracle: the same additions in NumPy, in the order that the kernel promises."""

from __future__ import annotations

import numpy as np
import pytest

from ops.array_types import Float32Array, Float64Array
from ops.channel_sums import channel_sums

RNG = np.random.default_rng(17)
LANES = 16


def twin(x: Float32Array) -> Float64Array:
    """Return the sums [channels] of numbers [outer, channels, inner]; cumsum adds one after the other."""
    numbers = x.astype(np.float64)
    outer, channels, inner = x.shape
    if inner > 1:
        padded = np.pad(numbers, ((0, 0), (0, 0), (0, -inner % LANES)))
        lanes = np.cumsum(padded.reshape(outer, channels, -1, LANES), axis=2)[:, :, -1]
        numbers = np.cumsum(lanes, axis=2)[:, :, -1:]
    return np.cumsum(numbers[..., 0], axis=0)[-1]


def squared(x: Float32Array) -> Float64Array:
    return np.square(x, dtype=np.float64)


SHAPES = [
    *((1, 1, n) for n in (1, 2, 15, 16, 17, 33, 1000)),
    *((n, 1, 1) for n in (2, 40)),
    *((3, n, 1) for n in (2, 63, 200)),
    *((3, n, 9) for n in (1, 2, 70)),
    (2, 5, 64),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel_equals_its_twin(shape: tuple[int, int, int]) -> None:
    x = (RNG.standard_normal(shape) * 2 ** RNG.uniform(-20, 20, shape)).astype(np.float32)  # order matters
    x.reshape(-1)[::7] = RNG.choice([0.0, -0.0, 1e-45, 3e38], x.reshape(-1)[::7].shape)
    totals, squares = channel_sums(x, 1)
    assert np.array_equal(totals, twin(x))
    assert np.array_equal(squares, twin(squared(x)))


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -3])
def test_any_axis_and_strides(axis: int) -> None:
    x = RNG.standard_normal((5, 4, 6, 7)).astype(np.float32)[::2, :, ::-1]
    others = tuple(i for i in range(4) if i != axis % 4)
    totals, squares = channel_sums(x, axis)
    assert np.allclose(totals, x.sum(axis=others, dtype=np.float64), rtol=1e-13, atol=1e-13)
    assert np.allclose(squares, squared(x).sum(axis=others), rtol=1e-13)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 3, 0), (0, 3)])
def test_without_numbers_sums_are_zero(shape: tuple[int, ...]) -> None:
    totals, squares = channel_sums(np.zeros(shape, np.float32), 1)
    assert totals.tolist() == squares.tolist() == [0, 0, 0]
