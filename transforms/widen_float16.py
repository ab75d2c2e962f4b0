"""float16 graphs, and float16 islands in float32 graphs, computed in float32."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.lazy_values import Weight, become_constant, constant, derived
from transforms.graph.rewire import drop, position
from transforms.graph.typed import Node, info_of
from transforms.model import metadata

_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes that name the element type of an output, as in Cast, EyeLike or RandomNormal."""

_CONTAINERS = {
    "sequence_type": "a sequence",
    "optional_type": "an optional",
    "map_type": "a map",
    "sparse_tensor_type": "a sparse tensor",
}


def widen_float16(graph: gs.Graph, *, keep_io_types: bool = True) -> int:
    """Make every float16 tensor float32, bodies included; return how many tensors, Casts among them, changed.

    Widening is exact; results differ from float16 arithmetic because intermediate values are not rounded.
    Inputs and outputs of the model stay float16, with a Cast, or become float32 with ``keep_io_types``
    false. Remaining Casts from float32 to float32 are removed. Raises ValueError if an input or output is a
    sequence or an optional of float16 tensors, which Cast does not accept.
    """
    walk.check_graph(graph)
    _refuse_containers(graph)
    names = walk.Names(graph)
    ends = (*graph.inputs, *graph.outputs)
    fixed = {id(tensor) for tensor in ends if keep_io_types and dtypes.is_type(tensor, dtypes.FLOAT16)}
    changed = sum(_cast_input(graph, tensor, names) for tensor in graph.inputs if id(tensor) in fixed)
    changed += sum(_cast_output(graph, tensor, names) for tensor in graph.outputs if id(tensor) in fixed)
    changed += _widen_constants(graph, fixed, names) + _widen_variables(graph, fixed)
    for node in walk.nodes(graph):
        if all(id(tensor) not in fixed for tensor in node.outputs):
            widen_attributes(node, dtypes.FLOAT16)
    if changed:
        _drop_void_casts(graph)
    return changed


def _refuse_containers(graph: gs.Graph) -> None:
    info = info_of(graph)
    declared = {**info.outputs, **info.inputs}
    for tensor in (*graph.inputs, *graph.outputs):
        container = None
        if tensor.name in declared:
            kind = declared[tensor.name].type
            narrow = any(
                tensor_type.elem_type == dtypes.FLOAT16 for tensor_type in metadata.tensor_types(kind)
            )
            container = _CONTAINERS.get(str(kind.WhichOneof("value"))) if narrow else None
        if not dtypes.is_type(tensor, dtypes.FLOAT16) and tensor.dtype == np.float16:
            container = "a sequence"
        if container:
            raise ValueError(f"'{tensor.name}' is {container} of float16 tensors, which cannot be widened")


def _cast_input(graph: gs.Graph, tensor: gs.Variable, names: walk.Names) -> int:
    """Make all consumers of a float16 input read its widened value."""
    if all(node.op == "Cast" and node.attrs.get("to") == dtypes.FLOAT for node in tensor.outputs):
        return 0
    wide = dtypes.variable(names.derive(tensor.name, "float32"), dtypes.FLOAT, tensor)
    walk.redirect(tensor, wide)
    graph.nodes.insert(0, cast(tensor, wide, names))
    return 1


def _cast_output(graph: gs.Graph, tensor: gs.Variable, names: walk.Names) -> int:
    """Make the producer of a float16 output, and its consumers, use a tensor to be widened."""
    producer = walk.producer(tensor)
    is_cast = producer is not None and producer.op == "Cast"
    if producer is None or (
        is_cast and not tensor.outputs and dtypes.is_type(producer.inputs[0], dtypes.FLOAT)
    ):
        return 0  # it is a narrowed tensor already
    wide = dtypes.variable(names.derive(tensor.name, "wide"), dtypes.FLOAT, tensor)
    walk.redirect(tensor, wide)
    walk.replace_output(producer, tensor, wide)
    if is_cast:
        producer.attrs["to"] = dtypes.FLOAT
    graph.nodes.insert(position(graph, producer) + 1, cast(wide, tensor, names))
    return 1


def cast(source: gs.Tensor, target: gs.Tensor, names: walk.Names) -> gs.Node:
    """Return a Cast of one tensor to the type of another."""
    to = dtypes.element_type(target)
    return gs.Node("Cast", names.derive(target.name, "cast"), {"to": to}, [source], [target])


def _widen_constants(graph: gs.Graph, fixed: set[int], names: walk.Names) -> int:
    narrow = [t for t in walk.constants(graph) if dtypes.is_type(t, dtypes.FLOAT16)]
    for tensor in narrow:
        if id(tensor) not in fixed:
            become_constant(tensor, _widened(tensor))
        elif tensor.outputs:
            wide = constant(names.derive(tensor.name, "float32"), _widened(tensor))
            walk.redirect(tensor, wide)
    return sum(id(tensor) not in fixed or bool(tensor.outputs) for tensor in narrow)


def _widened(tensor: gs.Constant) -> Weight:
    return derived(tensor._values, lambda values: values.astype(np.float32), np.float32)


def _widen_variables(graph: gs.Graph, fixed: set[int]) -> int:
    changed = 0
    for inner in walk.graphs(graph):
        for tensor in (*inner.inputs, *inner.outputs, *(t for node in inner.nodes for t in node.outputs)):
            # also sequences of them, whose type dtypes.is_type does not know
            if id(tensor) not in fixed and isinstance(tensor, gs.Variable) and tensor.dtype == np.float16:
                tensor.dtype = np.dtype(np.float32)
                changed += 1
    return changed


def widen_attributes(node: gs.Node, element: int) -> None:
    """Replace the element type in attributes of a node by float32, also in those that :class:`Node` keeps."""
    for name in _TYPE_ATTRIBUTES:
        if node.attrs.get(name) == element:
            node.attrs[name] = dtypes.FLOAT
    if isinstance(node, Node):
        node.lost = [_wide_type(attribute, element) for attribute in node.lost]
    value = node.attrs.get("value")
    if isinstance(value, gs.Constant) and dtypes.is_type(value, element):
        node.attrs["value"] = gs.Constant(value.name, load(value).astype(np.float32))


def _wide_type(attribute: onnx.AttributeProto, element: int) -> onnx.AttributeProto:
    """Return an attribute that is a type, as of an empty Optional, with float32 for an element type."""
    if attribute.type != onnx.AttributeProto.TYPE_PROTO:
        return attribute
    wide = onnx.AttributeProto()
    wide.CopyFrom(attribute)
    for kind in metadata.tensor_types(wide.tp):
        if kind.elem_type == element:
            kind.elem_type = dtypes.FLOAT
    return wide


def _drop_void_casts(graph: gs.Graph) -> None:
    """Remove Casts from float32 to float32, except those that produce an output of their graph."""
    for inner in walk.graphs(graph):
        outputs = {id(tensor) for tensor in inner.outputs}
        casts = [node for node in inner.nodes if node.op == "Cast" and node.attrs.get("to") == dtypes.FLOAT]
        void = [
            node
            for node in casts
            if dtypes.is_type(node.inputs[0], dtypes.FLOAT) and id(node.outputs[0]) not in outputs
        ]
        for node in void:
            walk.redirect(node.outputs[0], node.inputs[0])
        drop(inner, void)
