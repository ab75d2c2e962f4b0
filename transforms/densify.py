"""Sparse initializers become ordinary ones, which every later step can read."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray


def densify(graph: onnx.GraphProto) -> int:
    """Replace the sparse initializers of a graph and of its bodies by dense ones; return how many there were.

    Indices are one number per value, counted in row-major order, or one row of coordinates per value.
    """
    count = len(graph.sparse_initializer)
    for sparse in graph.sparse_initializer:
        graph.initializer.append(onnx.numpy_helper.from_array(_dense(sparse), sparse.values.name))
    graph.ClearField("sparse_initializer")
    bodies = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return count + sum(densify(body) for body in bodies)


def _dense(sparse: onnx.SparseTensorProto) -> NDArray:
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense
