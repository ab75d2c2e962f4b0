"""Convert arrays to bfloat16 and back, with the same native code as the operators."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from ops._library import narrow_to_float16, round_float16, round_float32, widen_to_float32
from ops.subnormals import keeps_subnormals

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@keeps_subnormals
def to_bfloat16(x: NDArray[np.floating]) -> NDArray[ml_dtypes.bfloat16]:
    """Round float32 or float16 numbers half to even to bfloat16: the upper half of a float32's bits.

    NaN stays NaN, subnormal numbers are kept, numbers that exceed the largest bfloat16 (3.39e38) by half a
    step or more become infinite. Any shape and memory layout. Raises ValueError for other types.
    """
    source = np.asarray(x)
    result = np.empty(source.shape, np.uint16)
    if source.dtype == np.float32:
        round_float32(_flat(source), result.reshape(-1))
    elif source.dtype == np.float16:
        round_float16(_flat(source).view(np.uint16), result.reshape(-1))
    else:
        raise ValueError(
            f"an array of {source.dtype} cannot be rounded to bfloat16, legal are float32 and float16"
        )
    return result.view(BFLOAT16)


@keeps_subnormals
def from_bfloat16(x: NDArray[ml_dtypes.bfloat16], dtype: DTypeLike = np.float32) -> NDArray[np.floating]:
    """Convert bfloat16 numbers to float32, which is exact, or to float16, rounding half to even.

    float16 keeps its subnormal numbers and becomes infinite beyond 65504. Any shape and memory layout. Raises
    ValueError for other types.
    """
    source = np.asarray(x)
    if source.dtype != BFLOAT16:
        raise ValueError(f"the array is of {source.dtype}, legal is bfloat16")
    bits = _flat(source.view(np.uint16))
    result = np.empty(source.shape, dtype)
    if result.dtype == np.float32:
        widen_to_float32(bits, result.reshape(-1))
    elif result.dtype == np.float16:
        narrow_to_float16(bits, result.reshape(-1).view(np.uint16))
    else:
        raise ValueError(f"bfloat16 cannot be converted to {result.dtype}, legal are float32 and float16")
    return result


def _flat(x: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.ascontiguousarray(x).reshape(-1)
