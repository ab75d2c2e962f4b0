"""One of each kind of node, for questions about kernels: a runtime answers them one node at a time."""

from __future__ import annotations

import onnx

_BY_VALUE = frozenset({"Resize", "Upsample"})
"""Operators whose kernels look at constant floats when a session is opened; others do at sizes and axes."""

_WITH_BODIES = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def distinct_nodes(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a model with the first of all nodes that are alike, each alone between inputs and outputs.

    Nodes are alike that have one operator, the same attributes, and inputs and outputs of the same types and
    shapes; the constant sizes and axes (int64) that they read are the same, too. None for a model with
    bodies, or with tensors of unknown types: they do not stand alone.
    """
    kinds: dict[str, onnx.TypeProto] = {}
    known: dict[str, object] = {"": ""}
    for value in (*model.graph.value_info, *model.graph.output, *model.graph.input):
        name, kind = value.name, value.type
        kinds[name], known[name] = kind, kind.SerializeToString()
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    known |= {name: _kind(tensor, by_value=False) for name, tensor in stored.items()}
    found: dict[tuple[object, ...], onnx.NodeProto] = {}
    for node in model.graph.node:
        op, read, attributes = node.op_type, node.input, node.attribute
        inputs, outputs = [known.get(name) for name in read], [known.get(name) for name in node.output]
        if None in inputs or None in outputs or any(a.type in _WITH_BODIES for a in attributes):
            return None
        if op in _BY_VALUE:
            inputs = [_kind(stored[n], by_value=True) if n in stored else known[n] for n in read]
        content = [attribute.SerializeToString() for attribute in attributes]
        found.setdefault((op, node.domain, *inputs, None, *outputs, None, *content), node)
    return _alone(model, list(found.values()), kinds, stored)


def _kind(tensor: onnx.TensorProto, *, by_value: bool) -> tuple[object, ...]:
    looked_at = by_value or tensor.data_type == onnx.TensorProto.INT64
    return tensor.data_type, tuple(tensor.dims), tensor.raw_data if looked_at else b""


def _alone(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    kinds: dict[str, onnx.TypeProto],
    stored: dict[str, onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a model of nodes none of which reads what another makes: each makes tensors of new names."""
    prefix = "made"
    while any(name.startswith(prefix) for name in (*kinds, *stored)):
        prefix += "_"
    every = dict.fromkeys(name for node in nodes for name in node.output if name)
    made = {name: f"{prefix}{place}" for place, name in enumerate(every)}
    read = dict.fromkeys(name for node in nodes for name in node.input if name)
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.output[:] = [made.get(name, "") for name in node.output]
        copies.append(copy)
    inputs = [onnx.ValueInfoProto(name=name, type=kinds[name]) for name in read if name not in stored]
    outputs = [onnx.ValueInfoProto(name=new, type=kinds[name]) for name, new in made.items()]
    initializers = [stored[name] for name in read if name in stored]
    graph = onnx.helper.make_graph(copies, "distinct", inputs, outputs, initializers)
    return onnx.ModelProto(graph=graph, opset_import=model.opset_import, ir_version=model.ir_version)
