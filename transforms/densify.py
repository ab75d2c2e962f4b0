"""Sparse initializers become ordinary ones, which every later step can read."""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray

from transforms.read_model import ModelError


def densify(graph: onnx.GraphProto) -> int:
    """Replace the sparse initializers of a graph and of its bodies by dense ones; return how many there were.

    Indices are one number per value, counted in row-major order, or one row of coordinates per value. Raises
    ModelError, naming tensor, index and limit, where they are not inside the tensor or do not ascend.
    """
    count = len(graph.sparse_initializer)
    for sparse in graph.sparse_initializer:
        graph.initializer.append(onnx.numpy_helper.from_array(_dense(sparse), sparse.values.name))
    graph.ClearField("sparse_initializer")
    bodies = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return count + sum(densify(body) for body in bodies)


def _dense(sparse: onnx.SparseTensorProto) -> NDArray:
    values = onnx.numpy_helper.to_array(sparse.values)
    places = _places(sparse, onnx.numpy_helper.to_array(sparse.indices), len(values))
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    dense.reshape(-1)[places] = values
    return dense


def _places(sparse: onnx.SparseTensorProto, indices: NDArray, count: int) -> NDArray:
    """Return where each value belongs, counted in row-major order."""
    what, sizes = f"sparse initializer '{sparse.values.name}'", list(sparse.dims)
    limits = [math.prod(sizes)] if indices.ndim == 1 else sizes
    if indices.shape not in ((count,), (count, len(sizes))):
        raise ModelError(
            f"{what} of shape {sizes} has {count} values and indices of shape {list(indices.shape)}"
        )
    coordinates = indices.reshape(count, len(limits))
    for axis, limit in enumerate(limits):
        outside = coordinates[(coordinates[:, axis] < 0) | (coordinates[:, axis] >= limit), axis]
        if len(outside):
            along = f" along axis {axis}" if indices.ndim == 2 else ""
            legal = f"legal are 0 ... {limit - 1}"
            raise ModelError(f"{what} of shape {sizes} has index {outside[0]}{along}, {legal}")
    places = np.ravel_multi_index(tuple(coordinates.T), tuple(limits))
    falling = np.flatnonzero(np.diff(places) <= 0)
    if len(falling):
        before, after = (indices[falling[0] + i].tolist() for i in (0, 1))
        raise ModelError(f"{what} has index {after} after {before}, they have to ascend")
    return places
