"""Rounding errors of integers for several scales at once, for searches over scales."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ops._library import scale_errors
from ops.array_types import Float32Array, Float64Array
from ops.formats import Format
from ops.subnormals import keeps_subnormals

CHUNK = 1 << 16  # elements that fit into a processor's inner caches, with temporaries


@keeps_subnormals
def squared_errors(
    x: Float32Array,
    scales: Float32Array,
    zero_points: NDArray[np.generic],
    fmt: Format,
    importance: NDArray[np.floating] | None = None,
) -> Float64Array:
    """Return the sum of importance * (x - its rounding)^2 for each scale and zero point [k, channels].

    ``x`` is [outer, channels, inner], as is ``importance``; numbers that are not finite count as 0. It is
    processed in chunks, which needs little additional memory.
    """
    zeros = np.asarray(zero_points).astype(np.float64, copy=False)
    lowest, highest = ((limit - zeros).astype(np.float32) for limit in (fmt.lowest, fmt.highest))
    errors, counts = np.zeros(scales.shape), np.zeros((0, 0, 0), np.float32)
    for chunk in _chunks(x.shape):
        if importance is not None:
            counts = np.ascontiguousarray(importance[chunk], np.float32)
        channels = (slice(None), chunk[1])
        chunk_errors = np.ascontiguousarray(errors[channels])
        scale, low, high = (np.ascontiguousarray(part[channels]) for part in (scales, lowest, highest))
        scale_errors(np.ascontiguousarray(x[chunk]), counts, scale, low, high, chunk_errors)
        errors[channels] = chunk_errors
    return errors * np.square(scales, dtype=np.float64)


def _chunks(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice, slice]]:
    """Split [outer, channels, inner] into pieces of at most CHUNK elements."""
    outer, channels, inner = shape
    i = min(inner, CHUNK)
    c = min(channels, max(1, CHUNK // i))
    o = max(1, CHUNK // (i * c))
    for a in range(0, outer, o):
        for b in range(0, channels, c):
            for d in range(0, inner, i):
                yield slice(a, a + o), slice(b, b + c), slice(d, d + i)
