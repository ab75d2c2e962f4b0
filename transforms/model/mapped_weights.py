"""Large weights in mapped files: they take no memory but page cache, which the system takes back at will."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
import onnx.external_data_helper as external
from numpy.typing import NDArray

from transforms.graph.lazy_values import LARGE, Computed, Weight
from transforms.model.wire_format import without_raw_data

_ARRAY_TYPE_NAMES = (
    *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL"),
    *("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"),
)
_ARRAY_TYPES = frozenset(onnx.TensorProto.DataType.Value(name) for name in _ARRAY_TYPE_NAMES)


def is_heavy(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor claims to be large, of a type whose bytes are those of a NumPy array."""
    if tensor.data_type not in _ARRAY_TYPES:
        return False
    return math.prod(tensor.dims) * _dtype(tensor).itemsize >= LARGE


def weight_at(content: NDArray[np.uint8], offset: int, tensor: onnx.TensorProto) -> Weight:
    """Return the array of a tensor whose bytes begin at an offset of a mapped file.

    It is a view of the file, or, where NumPy could not read it in place, a copy each time it is needed.
    """
    dtype, shape = _dtype(tensor), tuple(tensor.dims)
    raw = content[offset : offset + math.prod(shape) * dtype.itemsize]
    if offset % dtype.itemsize:
        return Computed(shape, dtype, lambda: raw.copy().view(dtype).reshape(shape))
    return raw.view(dtype).reshape(shape)


def parse_in_place(content: NDArray[np.uint8]) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """Return the model in the bytes of a file, and its large initializers where they are, by name.

    Those have no data in the model, which says that they are external. Raises DecodeError for other bytes.
    """
    model, view = onnx.ModelProto(), content.data
    light, places = without_raw_data(view, LARGE)
    model.ParseFromString(light)
    heavy = {tensor.name for tensor in unique_heavy(model.graph)}
    mapped: dict[str, Weight] = {}
    for place in places:
        tensor = model.graph.initializer[place.number]
        claimed = math.prod(tensor.dims) * _dtype(tensor).itemsize if tensor.name in heavy else None
        if external.uses_external_data(tensor) or place.end - place.begin != claimed:
            tensor.raw_data = bytes(view[place.begin : place.end])
            continue
        mapped[tensor.name] = weight_at(content, place.begin, tensor)
        tensor.data_location = onnx.TensorProto.EXTERNAL
    return model, mapped


def unique_heavy(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Return the large initializers of a graph that share their name with no other."""
    count = Counter(tensor.name for tensor in graph.initializer)
    return [tensor for tensor in graph.initializer if is_heavy(tensor) and count[tensor.name] == 1]


def _dtype(tensor: onnx.TensorProto) -> np.dtype[np.generic]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
