"""Values of large weights that are computed at each use and never kept.

A weight that is mapped from a file takes no memory. A derived weight would, so it stays a function of its
source until it is written: one weight at a time is in memory, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike, NDArray
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues

from transforms.files.mapped_file import file_of

LARGE = 1 << 16
"""Bytes from which a weight is large: kept out of light models, and lazy if it comes from a mapped file."""

PACKED = {
    **{np.dtype(kind): 2 for kind in (ml_dtypes.int2, ml_dtypes.uint2)},
    **{np.dtype(kind): 4 for kind in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn)},
    **{np.dtype(kind): 6 for kind in (ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn)},
}
"""Bits of the types that models store packed, and NumPy in one byte each."""


class Computed(LazyValues):
    """The result of a function without arguments that returns the same array at each call."""

    def __init__(
        self, shape: Sequence[int], dtype: DTypeLike, compute: Callable[[], NDArray[np.generic]]
    ) -> None:
        """Take shape, type and the function."""
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize
        self._compute = compute

    def load(self) -> NDArray[np.generic]:
        """Return a new array."""
        return self._compute()

    @property
    def tensor(self) -> onnx.TensorProto:
        """The array as graph-surgeon exports it."""
        return onnx.numpy_helper.from_array(self.load())


Weight = NDArray[Any] | Computed
"""An array, or the function that computes it; both have shape, dtype and nbytes."""


class LazyConstant(gs.Constant):
    """A constant whose ``values`` take memory only while they are used: computed, or in a mapped file."""

    @property
    def values(self) -> NDArray[Any]:
        """The array."""
        return load_values(self._values)

    @values.setter
    def values(self, values: Weight | LazyValues) -> None:
        self._values = values

    def copy(self) -> gs.Constant:
        """Return a constant with the same values, without inputs and outputs."""
        return constant(self.name, self._values)


def load_values(values: Weight | LazyValues) -> NDArray[Any]:
    """Return an array; lazy values stay lazy."""
    if isinstance(values, Computed):
        return values.load()
    if not isinstance(values, LazyValues):
        if values.nbytes >= LARGE and (file := file_of(values)):
            file.take(values.nbytes)
        return values
    if isinstance(values, SparseValues):
        return np.asarray(values.load())
    return onnx.numpy_helper.to_array(values.tensor)


def constant(name: str, values: Weight | LazyValues) -> gs.Constant:
    """Return a constant, which does not cache computed values."""
    kind = LazyConstant if is_weightless(values) else gs.Constant
    return kind(name, values)


def become_constant(tensor: gs.Tensor, values: Weight | LazyValues) -> gs.Constant:
    """Turn a variable into a constant, or give a constant new values, in place; return it."""
    if isinstance(tensor, gs.Constant):
        tensor.values = values
    else:
        tensor.to_constant(values)
    if is_weightless(values):
        tensor.__class__ = LazyConstant
    return tensor


def derived(
    source: Weight | LazyValues,
    compute: Callable[[NDArray[Any]], NDArray[Any]],
    dtype: DTypeLike,
    shape: Sequence[int] | None = None,
) -> Weight:
    """Return the result of a function of an array: computed at once, or lazily if the source is lazy.

    ``dtype`` and ``shape`` describe the result; the shape is by default that of the source.
    """
    if not is_weightless(source):
        return compute(load_values(source))
    return Computed(source.shape if shape is None else shape, dtype, lambda: compute(load_values(source)))


def is_weightless(values: Weight | LazyValues) -> bool:
    """Return whether the values of a large weight take no memory: computed, or mapped from a file."""
    if isinstance(values, Computed) or not isinstance(values, np.ndarray):
        return isinstance(values, Computed)
    return values.nbytes >= LARGE and file_of(values) is not None


def stored(values: Weight) -> NDArray[np.uint8]:
    """Return the bytes of an array as a model stores them, with numbers of 4 and 6 bits packed."""
    array = load_values(values)
    if array.dtype in PACKED:
        return np.frombuffer(onnx.numpy_helper.from_array(array).raw_data, np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def stored_bytes(values: Weight) -> int:
    """Return how many bytes a model stores for an array."""
    return (int(values.nbytes) * PACKED.get(values.dtype, 8) + 7) // 8
