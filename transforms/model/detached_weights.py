"""Light models: large weights are kept as arrays, possibly lazy, beside a model without their data.

Passes of onnx and ONNX Runtime get the light model, so that their cost does not depend on the size of the
weights. Sparse tensors become dense, which every later step can read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import MappingProxyType

import numpy as np
import onnx
import onnx.external_data_helper as external
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx_graphsurgeon.ir.tensor import LazyValues

from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import LARGE, Computed, Weight, load_values, stored, stored_bytes
from transforms.model.mapped_weights import copy_fields, is_heavy
from transforms.model.model_error import ModelError

MOST_BYTES = 1 << 28
"""Total bytes that all sparse tensors of a model may have when dense, however few are stored."""

GROWTH = 1000
"""The same as a multiple of the stored bytes, if that is more: one value in a thousand is sparse enough."""


def split(
    model: onnx.ModelProto, mapped: Mapping[str, Weight] = MappingProxyType({})
) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """Return a copy of the model in which large weights are graph inputs, and their arrays by name.

    Weights in ``mapped`` have no data in the model.
    """
    light = _without_initializers(model)
    sparse_to_dense(light)
    inputs = {value.name for value in model.graph.input}
    weights: dict[str, Weight] = {}
    for tensor in model.graph.initializer:
        if not is_heavy(tensor):
            light.graph.initializer.append(tensor)
            continue
        held = tensor.name not in mapped
        weights[tensor.name] = onnx.numpy_helper.to_array(tensor) if held else mapped[tensor.name]
        if tensor.name not in inputs:
            light.graph.input.append(placeholder(tensor))
    return light, weights


def hollow(model: onnx.ModelProto) -> set[str]:
    """Turn the large initializers of a model into graph inputs, in place; return their names.

    Their data need not be readable. ModelError for sparse tensors that would be too large.
    """
    refuse_large_sparse(sparse_tensors(model.graph.node, model.graph))
    inputs = {value.name for value in model.graph.input}
    large = [t for t in model.graph.initializer if external.uses_external_data(t) or is_heavy(t)]
    model.graph.input.extend(placeholder(tensor) for tensor in large if tensor.name not in inputs)
    names = {tensor.name for tensor in large}
    small = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(small)
    return names


def as_inputs(light: onnx.ModelProto, weights: Collection[str]) -> onnx.ModelProto:
    """Return the light model with its empty initializers as graph inputs, for passes.

    Without any it returns the model itself.
    """
    if not weights:
        return light
    result = _without_initializers(light)
    for tensor in light.graph.initializer:
        if tensor.name in weights:
            result.graph.input.append(placeholder(tensor))
        else:
            result.graph.initializer.append(tensor)
    return result


def as_initializers(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Turn the graph inputs that are weights into empty initializers, in place."""
    inputs = [value for value in light.graph.input if value.name not in weights]
    del light.graph.input[:]
    light.graph.input.extend(inputs)
    light.graph.initializer.extend(_empty(name, values) for name, values in weights.items())


def _without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy_fields(model, copy, lambda field: field.name != "graph")
    copy_fields(model.graph, copy.graph, lambda field: field.name != "initializer")
    return copy


def fill(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Fill in the data of a light model's initializers."""
    for tensor in light.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = stored(weights[tensor.name]).tobytes()


def placeholder(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    """Return a graph input with the name, type and shape of an initializer."""
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


@contextmanager
def without_data(graph: gs.Graph, hide: Callable[[gs.Constant], bool] | None) -> Iterator[dict[str, Weight]]:
    """Make constants of the graph look empty to the exporter, and yield their arrays by name.

    These are the constants for which ``hide`` is true, by default the large ones.
    """
    hidden = [tensor for tensor in walk.constants(graph) if (hide or is_large)(tensor)]
    owners = walk.constant_owners(graph) if hidden else {}
    hidden = [tensor for tensor in hidden if owners[id(tensor)] is graph]
    weights: dict[str, Weight] = {tensor.name: _array_of(tensor) for tensor in hidden}
    for tensor in hidden:
        tensor._values = LazyValues(_empty(tensor.name, weights[tensor.name]))
    try:
        yield weights
    finally:
        for tensor in hidden:
            tensor._values = weights[tensor.name]


def is_large(tensor: gs.Constant) -> bool:
    """Return whether a constant is kept out of light models."""
    values = tensor._values  # `.values` would load lazy values
    return isinstance(values, (np.ndarray, Computed)) and stored_bytes(values) >= LARGE


def _array_of(tensor: gs.Constant) -> Weight:
    """Return the array of a constant, loaded unless it is computed lazily."""
    values: Weight = tensor._values
    return values if isinstance(values, (np.ndarray, Computed)) else load_values(values)


def _empty(name: str, values: Weight) -> onnx.TensorProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    return onnx.TensorProto(name=name, data_type=kind, dims=values.shape)


def sparse_to_dense(model: onnx.ModelProto) -> None:
    """Replace sparse initializers and sparse values of Constant nodes by dense ones.

    Bodies and functions are included: ONNX Runtime 1.32 reads freed memory when it inlines a function with a
    sparse Constant.

    Indices are one number per value, counted in row-major order, or one row of coordinates per value. Raises
    ModelError, naming tensor, index and limit, for indices that are out of range or not ascending and,
    before any is converted, for tensors that would be too large together.
    """
    refuse_large_sparse(chain(sparse_tensors(model.graph.node, model.graph), sparse_in_functions(model)))
    _densify_graph(model.graph)
    for function in model.functions:
        _densify_constants(function.node)


def sparse_tensors(
    nodes: Iterable[onnx.NodeProto], graph: onnx.GraphProto | None = None
) -> Iterator[tuple[str, onnx.SparseTensorProto]]:
    """Yield every sparse tensor of a graph, of nodes and of their bodies, with a label."""
    for sparse in graph.sparse_initializer if graph is not None else ():
        yield f"sparse initializer '{sparse.values.name}'", sparse
    for node in nodes:
        for attribute in node.attribute:
            label = f"sparse attribute '{attribute.name}' of node '{node.name or ''.join(node.output[:1])}'"
            if attribute.HasField("sparse_tensor"):
                yield label, attribute.sparse_tensor
            for sparse in attribute.sparse_tensors:
                yield label, sparse
            for body in (attribute.g, *attribute.graphs):
                if body.node or body.sparse_initializer:
                    yield from sparse_tensors(body.node, body)


def sparse_in_functions(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.SparseTensorProto]]:
    """Yield every sparse tensor of the local functions of a model, with a label."""
    for function in model.functions:
        yield from sparse_tensors(function.node)


def refuse_large_sparse(sparse_tensors: Iterable[tuple[str, onnx.SparseTensorProto]]) -> None:
    """Raise ModelError, naming the tensor, if the tensors would be too large together when dense."""
    stored = dense = 0
    pairs = list(sparse_tensors)
    for described, sparse in pairs:
        stored += sparse.ByteSize()
        if min(sparse.dims, default=0) < 0:
            raise ModelError(f"{described} has a negative dimension in {list(sparse.dims)}")
    for described, sparse in pairs:
        dtype = dtypes.numpy_type(sparse.values.data_type)
        if dtype is None:
            raise ModelError(f"{described} has unknown element type {sparse.values.data_type}")
        dense += math.prod(sparse.dims) * dtype.itemsize
        if dense > max(MOST_BYTES, GROWTH * stored):
            raise ModelError(
                f"{described} of shape {list(sparse.dims)} brings sparse tensors to {dense:,} bytes when "
                f"dense, more than {MOST_BYTES:,} and than {GROWTH} times the {stored:,} that are stored"
            )


def _densify_graph(graph: onnx.GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        label = f"sparse initializer '{sparse.values.name}'"
        graph.initializer.append(onnx.numpy_helper.from_array(_dense(sparse, label), sparse.values.name))
    graph.ClearField("sparse_initializer")
    _densify_constants(graph.node)


def _densify_constants(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _densify_graph(attribute.g)
            if attribute.HasField("sparse_tensor") and node.op_type == "Constant" and not node.domain:
                label = f"sparse value of Constant '{node.name or ''.join(node.output[:1])}'"
                dense = onnx.numpy_helper.from_array(_dense(attribute.sparse_tensor, label))
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _dense(sparse: onnx.SparseTensorProto, label: str) -> NDArray:
    values = onnx.numpy_helper.to_array(sparse.values)
    dims = tuple(sparse.dims)
    places = _places(label, dims, onnx.numpy_helper.to_array(sparse.indices), values)
    dense = np.zeros(dims, values.dtype)
    dense.reshape(-1)[places] = values
    return dense


def _places(described: str, dims: tuple[int, ...], indices: NDArray, values: NDArray) -> NDArray:
    """Return the index of each value, counted in row-major order."""
    sizes, count = list(dims), values.size
    limits = [math.prod(sizes)] if indices.ndim == 1 else sizes
    if values.ndim != 1 or indices.shape not in ((count,), (count, len(sizes))) or indices.dtype.kind != "i":
        raise ModelError(
            f"{described} of shape {sizes} has {count} values and indices of shape {list(indices.shape)}"
        )
    coordinates = indices.reshape(count, len(limits))
    for axis, limit in enumerate(limits):
        outside = coordinates[(coordinates[:, axis] < 0) | (coordinates[:, axis] >= limit), axis]
        if len(outside):
            along = f" along axis {axis}" if indices.ndim == 2 else ""
            legal = f"legal are 0 ... {limit - 1}"
            raise ModelError(f"{described} of shape {sizes} has index {outside[0]}{along}, {legal}")
    places = np.ravel_multi_index(tuple(coordinates.T), tuple(limits))
    falling = np.flatnonzero(np.diff(places) <= 0)
    if len(falling):
        before, after = (indices[falling[0] + i].tolist() for i in (0, 1))
        raise ModelError(f"{described} has index {after} after {before}, they have to ascend")
    return places
