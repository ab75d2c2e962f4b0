"""Light models: large weights stay NumPy arrays beside a model in which they have no data.

Whatever an onnx or ONNX Runtime pass has to see is the light model, so that its cost does not depend on the
size of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx
import onnx.external_data_helper as external
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from transforms.graph import walk
from transforms.model.sparse_to_dense import refuse_large_sparse, sparse_tensors, sparse_to_dense

LARGE = 1 << 16
"""Bytes from which a weight is kept out of the light model."""

_ARRAY_TYPE_NAMES = (
    *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL"),
    *("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"),
)
_ARRAY_TYPES = frozenset(onnx.TensorProto.DataType.Value(name) for name in _ARRAY_TYPE_NAMES)


def split(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a copy of the model in which large weights are graph inputs, and their arrays by name."""
    light = onnx.ModelProto()
    _copy_fields(model, light, skip={"graph"})
    _copy_fields(model.graph, light.graph, skip={"initializer"})
    sparse_to_dense(light.graph)
    inputs = {value.name for value in model.graph.input}
    weights = {}
    for tensor in model.graph.initializer:
        if not _is_heavy(tensor):
            light.graph.initializer.append(tensor)
            continue
        weights[tensor.name] = onnx.numpy_helper.to_array(tensor)
        if tensor.name not in inputs:
            light.graph.input.append(placeholder(tensor))
    return light, weights


def hollow(model: onnx.ModelProto) -> set[str]:
    """Turn the large initializers of a model into graph inputs, in place; return their names.

    They need not be readable. ModelError for sparse tensors that would be too large.
    """
    refuse_large_sparse(sparse_tensors(model.graph.node, model.graph))
    inputs = {value.name for value in model.graph.input}
    large = [t for t in model.graph.initializer if external.uses_external_data(t) or _is_heavy(t)]
    model.graph.input.extend(placeholder(tensor) for tensor in large if tensor.name not in inputs)
    names = {tensor.name for tensor in large}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return names


def as_inputs(light: onnx.ModelProto, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return the light model with its initializers without data as graph inputs, for passes to see."""
    result = onnx.ModelProto()
    _copy_fields(light, result, skip={"graph"})
    _copy_fields(light.graph, result.graph, skip={"initializer"})
    for tensor in light.graph.initializer:
        if tensor.name in weights:
            result.graph.input.append(placeholder(tensor))
        else:
            result.graph.initializer.append(tensor)
    return result


def fill(light: onnx.ModelProto, weights: dict[str, np.ndarray]) -> None:
    """Give the initializers of a light model their data."""
    for tensor in light.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = weights[tensor.name].tobytes()


def placeholder(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    """Return a graph input of the name, type and shape of an initializer."""
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def _is_heavy(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type not in _ARRAY_TYPES:
        return False
    return math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize >= LARGE


def _copy_fields(source: object, target: object, *, skip: set[str]) -> None:
    for descriptor, value in source.ListFields():  # type: ignore[attr-defined]
        if descriptor.name in skip:
            continue
        if hasattr(value, "extend"):
            getattr(target, descriptor.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, descriptor.name).CopyFrom(value)
        else:
            setattr(target, descriptor.name, value)


@contextmanager
def without_data(
    graph: gs.Graph, hide: Callable[[gs.Constant], bool] | None
) -> Iterator[dict[str, np.ndarray]]:
    """Let the large constants of the graph look empty to the exporter, and yield their arrays by name."""
    homes = walk.constant_homes(graph)
    large = [t for t in walk.constants(graph) if homes[id(t)] is graph and _is_large(t)]
    large = [t for t in large if hide is None or hide(t)]
    weights = {tensor.name: tensor.values for tensor in large}
    for tensor in large:
        tensor.values = LazyValues(_empty(tensor.name, weights[tensor.name]))
    try:
        yield weights
    finally:
        for tensor in large:
            tensor.values = weights[tensor.name]


def _is_large(tensor: gs.Constant) -> bool:
    values = tensor._values  # `.values` would load what is lazy
    return isinstance(values, np.ndarray) and values.nbytes >= LARGE


def _empty(name: str, values: np.ndarray) -> onnx.TensorProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    return onnx.TensorProto(name=name, data_type=kind, dims=values.shape)
