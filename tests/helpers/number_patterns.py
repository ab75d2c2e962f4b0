"""Arrays of numbers that are hard to round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array

Rng = np.random.Generator


def _signed(bits: NDArray[np.uint32], rng: Rng) -> Float32Array:
    return (bits | (rng.integers(0, 2, bits.size, dtype=np.uint32) << np.uint32(31))).view(np.float32)


def _outlier(n: int, rng: Rng) -> Float32Array:
    x = rng.standard_normal(n, np.float32)
    x[::16] *= np.float32(1e6)
    return x


def _special(n: int, rng: Rng) -> Float32Array:
    x = rng.standard_normal(n, np.float32)
    x[rng.random(n) < 0.05] = np.float32("nan")
    x[rng.random(n) < 0.05] = np.float32("inf")
    x[rng.random(n) < 0.05] = -np.float32("inf")
    x[rng.random(n) < 0.05] = -0.0
    return x


PATTERNS: dict[str, Callable[[int, Rng], Float32Array]] = {
    "normal": lambda n, rng: rng.standard_normal(n, np.float32),
    "raw bits": lambda n, rng: rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32),
    "wide": lambda n, rng: (rng.standard_normal(n) * 2.0 ** rng.integers(-40, 40, n)).astype(np.float32),
    "ties": lambda n, rng: (rng.integers(-300, 300, n) / 2 * 2.0 ** rng.integers(-6, 6, n)).astype(
        np.float32
    ),
    "tiny": lambda n, rng: _signed(rng.integers(0, 2**25, n, dtype=np.uint32), rng),
    "huge": lambda n, rng: _signed(rng.integers(0x7E000000, 0x7F800001, n, dtype=np.uint32), rng),
    "equal": lambda n, rng: np.full(n, rng.standard_normal(), np.float32),
    "zeros": lambda n, rng: np.where(rng.random(n) < 0.9, 0, rng.standard_normal(n)).astype(np.float32),
    "outlier": _outlier,
    "special": _special,
}


def make_pattern(name: str, shape: tuple[int, ...], rng: Rng) -> Float32Array:
    """Return an array of a shape, filled with one of the patterns."""
    return PATTERNS[name](int(np.prod(shape)), rng).reshape(shape)
