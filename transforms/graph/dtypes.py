"""Element types of graph-surgeon tensors, given as NumPy dtypes, as ONNX enum values, or not at all."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs

FLOAT = int(onnx.TensorProto.FLOAT)
FLOAT16 = int(onnx.TensorProto.FLOAT16)
INT8, UINT8 = int(onnx.TensorProto.INT8), int(onnx.TensorProto.UINT8)
BFLOAT16 = int(onnx.TensorProto.BFLOAT16)

_DISCRETE = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("BOOL", "STRING", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)))
)

NUMPY = {FLOAT: np.dtype(np.float32), FLOAT16: np.dtype(np.float16), BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
"""The NumPy dtype of each element type that the conversions support."""

BFLOAT16_MAX = np.float32(3.38953139e38)
"""The largest finite bfloat16, bits 0x7F7F."""


def element_type(tensor: gs.Tensor) -> int | None:
    """Return the ``onnx.TensorProto.DataType`` of a tensor, or None if unknown or not a plain tensor."""
    if isinstance(tensor, gs.Variable) and tensor.type != "tensor_type":
        return None
    dtype = tensor.dtype
    if dtype is None or isinstance(dtype, int):
        return dtype
    return element_of(dtype)


def sequence_element(tensor: gs.Tensor) -> int | None:
    """Return the element type of a sequence's tensors, or None if unknown or not a sequence."""
    if not isinstance(tensor, gs.Variable) or tensor.type != "sequence_type" or tensor.dtype is None:
        return None
    return tensor.dtype if isinstance(tensor.dtype, int) else element_of(tensor.dtype)


@lru_cache(maxsize=256)
def element_of(dtype: Any) -> int:
    """Return the ``onnx.TensorProto.DataType`` of a NumPy type."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def numpy_type(element: int) -> np.dtype[np.generic] | None:
    """Return the NumPy dtype of elements, or None for a number unknown to NumPy."""
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
    except (KeyError, TypeError, ValueError):
        return None


def is_type(tensor: gs.Tensor, element: int) -> bool:
    """Return whether the tensor is known to have the element type."""
    return element_type(tensor) == element  # does not use the name: tensors in attributes have none


def is_discrete(tensor: gs.Tensor) -> bool:
    """Return whether the tensor is known to hold integers of 8 bits or more, booleans or strings."""
    return element_type(tensor) in _DISCRETE


def variable(name: str, element: int, like: gs.Tensor) -> gs.Variable:
    """Return a new variable with the element type and with the shape of another tensor."""
    dtype = element if element == BFLOAT16 else NUMPY[element]
    return gs.Variable(name, dtype=dtype, shape=like.shape)
