"""Constant tensors of a graph and their values: initializers and outputs of Constant nodes."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx_graphsurgeon.ir.tensor import LazyValues

from transforms.graph import walk
from transforms.graph.dtypes import element_type
from transforms.graph.lazy_values import LARGE, PACKED, Computed, Weight, load_values, stored_bytes

PLAIN_VALUES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
"""Attributes of a Constant that hold numbers other than a tensor, and their dtypes."""


def magnitude(values: NDArray) -> float:
    """Return the largest magnitude of some numbers, 0 if there are none, without a temporary array."""
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


class Constants:
    """The constants of a graph and of all graphs nested in it.

    An initializer that is also a graph input is not constant: the caller may override it.
    """

    def __init__(self, graph: gs.Graph) -> None:
        """Take a graph, whose inputs can override initializers."""
        self._graph = graph

    @cached_property
    def _overridable(self) -> set[int]:
        return {id(tensor) for inner in walk.graphs(self._graph) for tensor in inner.inputs}

    def shape(self, tensor: gs.Tensor) -> tuple[int, ...] | None:
        """Return the shape of a constant without loading it, or None if the tensor is not constant."""
        source = self._source(tensor)
        return None if source is None else tuple(source.shape)

    def values(self, tensor: gs.Tensor) -> NDArray | None:
        """Return the array of a constant, or None if the tensor is not constant."""
        source = self._source(tensor)
        return load(source) if isinstance(source, gs.Constant) else source

    def source(self, tensor: gs.Tensor) -> Weight | LazyValues | None:
        """Return the array of a constant, an object that loads it, or None if the tensor is not constant."""
        source = self._source(tensor)
        return source._values if isinstance(source, gs.Constant) else source

    def element_type(self, tensor: gs.Tensor) -> int | None:
        """Return the ``onnx.TensorProto.DataType`` of a constant, or None if the tensor is not constant."""
        source = self._source(tensor)
        if source is None or isinstance(source, gs.Tensor):
            return None if source is None else element_type(source)
        return int(onnx.helper.np_dtype_to_tensor_dtype(source.dtype))

    def scalar(self, tensor: gs.Tensor) -> float | None:
        """Return the value of a constant that has exactly one element, None otherwise."""
        shape = self.shape(tensor)
        if shape is None or np.prod(shape) != 1:
            return None
        return float(np.asarray(self.values(tensor)).astype(np.float64).reshape(()))

    def integers(self, tensor: gs.Tensor) -> tuple[int, ...] | None:
        """Return a constant list of axes or sizes, or None if the tensor is not constant."""
        values = self.values(tensor)
        return None if values is None else tuple(int(value) for value in values.reshape(-1))

    def _source(self, tensor: gs.Tensor) -> gs.Constant | NDArray | None:
        if isinstance(tensor, gs.Constant):
            return None if id(tensor) in self._overridable else tensor
        if len(tensor.inputs) != 1 or tensor.inputs[0].op != "Constant":
            return None
        for name, value in tensor.inputs[0].attrs.items():
            if name == "value" and isinstance(value, gs.Constant):
                return value
            if name in PLAIN_VALUES:
                return np.asarray(value, PLAIN_VALUES[name])
        return None


def load(constant: gs.Constant) -> NDArray:
    """Return the array of a constant. Lazy values stay lazy: ``.values`` would keep a second copy."""
    return load_values(constant._values)


def exportable(values: Weight) -> Weight | LazyValues:
    """Return numbers of 4 and 6 bits packed as the model stores them, which graph-surgeon cannot do."""
    if isinstance(values, Computed) or values.dtype not in PACKED:
        return values
    packed = onnx.numpy_helper.from_array(values)
    if stored_bytes(values) < LARGE:
        return LazyValues(packed)
    return Computed(values.shape, values.dtype, lambda: onnx.numpy_helper.to_array(packed))


def bytes_of_numbers(graph: gs.Graph) -> int:
    """Return the bytes of the constants of a graph; numbers of few bits share bytes."""
    return sum(stored_bytes(tensor._values) for tensor in walk.constants(graph))
