"""Count numbers in equal bins, in one pass of native code."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ops import _library
from ops.array_types import Float32Array
from ops.subnormals import keeps_subnormals

_TABLES = 4  # as in the kernel


@keeps_subnormals
def count_in_bins(x: Float32Array, exponent: int, counts: NDArray[np.int64]) -> None:
    """Add the numbers of an array of any shape to the counts of equal bins, [bins].

    The bins divide [-2**exponent, 2**exponent) and include their lower edges; their number is a power of
    two, and float32 can represent it times 2**-exponent. Numbers outside count in the outermost bins. NaN is
    not allowed, nor are 2**32 numbers or more.
    """
    scale = math.ldexp(len(counts) / 2, -exponent)
    tables = np.empty((_TABLES, len(counts)), np.uint32)
    _library.count_in_bins(np.ascontiguousarray(x, np.float32).reshape(-1), scale, counts, tables)
