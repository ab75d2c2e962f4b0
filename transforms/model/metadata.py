"""Properties of a model that graph-surgeon drops, kept beside the graph and written back.

Domain, version, documentation and metadata of the model; documentation and metadata of nodes; quantization
annotations; types of inputs and outputs other than tensors; rare kinds of attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import onnx
import onnx_graphsurgeon as gs

from transforms.graph.proto_graphs import each_graph, each_node, sizes_of
from transforms.graph.typed import ModelInfo, Node

_SURGEON_ATTRIBUTES = frozenset(
    onnx.AttributeProto.AttributeType.Value(name)
    for name in ("FLOAT", "INT", "STRING", "TENSOR", "GRAPH", "FLOATS", "INTS", "STRINGS")
)
_LISTS = {
    onnx.AttributeProto.FLOATS: "floats",
    onnx.AttributeProto.INTS: "ints",
    onnx.AttributeProto.STRINGS: "strings",
}


def read_info(model: onnx.ModelProto) -> ModelInfo:
    """Return the properties of a model."""
    return ModelInfo(
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        metadata={entry.key: entry.value for entry in model.metadata_props},
        graph_metadata={entry.key: entry.value for entry in model.graph.metadata_props},
        annotations=list(model.graph.quantization_annotation),
        inputs={value.name: value for value in model.graph.input},
        outputs={value.name: value for value in model.graph.output},
    )


def write_info(info: ModelInfo, model: onnx.ModelProto) -> None:
    """Write the properties back into a model; entries of removed tensors are left out."""
    model.domain, model.model_version, model.doc_string = info.domain, info.model_version, info.doc_string
    onnx.helper.set_model_props(model, info.metadata)
    _write_entries(model.graph, info.graph_metadata)
    if info.annotations:
        names = {tensor.name for tensor in model.graph.initializer}
        names.update(name for node in model.graph.node for name in node.output)
        model.graph.quantization_annotation.extend(a for a in info.annotations if a.tensor_name in names)
    for values, declared in ((model.graph.input, info.inputs), (model.graph.output, info.outputs)):
        for value in values:
            if value.name in declared:
                _write_declaration(declared[value.name], value)


def _write_declaration(before: onnx.ValueInfoProto, value: onnx.ValueInfoProto) -> None:
    """Restore the declaration of an input or an output."""
    if before.type.WhichOneof("value") != "tensor_type":
        value.CopyFrom(before)
    elif _is_declared(before.type.tensor_type, value.type.tensor_type):
        value.type.tensor_type.shape.CopyFrom(before.type.tensor_type.shape)
    if before.type.denotation:
        value.type.denotation = before.type.denotation
    if before.doc_string:
        value.doc_string = before.doc_string
    value.metadata_props.extend(before.metadata_props)


def _is_declared(before: onnx.TypeProto.Tensor, now: onnx.TypeProto.Tensor) -> bool:
    """Return whether a shape stays as declared: inference may have replaced symbols by numbers.

    A later opset may show that it was wrong.
    """
    return before.HasField("shape") and not (now.HasField("shape") and contradicts(before, now))


def contradicts(one: onnx.TypeProto.Tensor, other: onnx.TypeProto.Tensor) -> bool:
    """Return whether two shapes contradict each other: different ranks, or different sizes of an axis."""
    if not other.HasField("shape"):
        return False
    sizes, others = sizes_of(one) or [], sizes_of(other) or []
    if len(sizes) != len(others):
        return True
    return any(None not in pair and pair[0] != pair[1] for pair in zip(sizes, others, strict=True))


def tensor_types(kind: onnx.TypeProto) -> Iterator[onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor]:
    """Yield the tensor types in a type: its own, or those in a sequence, an optional or a map."""
    held = kind.WhichOneof("value")
    if held in ("tensor_type", "sparse_tensor_type"):
        yield getattr(kind, held)
    elif held is not None:
        inner = getattr(kind, held)
        yield from tensor_types(inner.value_type if held == "map_type" else inner.elem_type)


@contextmanager
def without_binary(graph: onnx.GraphProto) -> Iterator[None]:
    """Remove attributes that graph-surgeon cannot read: strings that are not UTF-8.

    Operators of extension libraries may keep a whole file in one, as tokenizers do.
    """
    binaries = ((node, [a for a in node.attribute if not _is_text(a)]) for node in each_node(graph))
    removed = [(node, binary) for node, binary in binaries if binary]
    for node, binary in removed:
        for attribute in binary:
            node.attribute.remove(attribute)
    try:
        yield
    finally:
        for node, binary in removed:
            node.attribute.extend(binary)


def attach_metadata(proto: onnx.GraphProto, graph: gs.Graph) -> None:
    """Attach to each node what graph-surgeon drops, and remove attributes that it cannot export again."""
    for source, plain_node in zip(proto.node, graph.nodes, strict=True):
        node = Node.adopt(plain_node)
        if source.doc_string or source.metadata_props:  # assignments to nodes are slow
            node.doc_string = source.doc_string
            node.metadata = {entry.key: entry.value for entry in source.metadata_props}
        lost = [attribute for attribute in source.attribute if _is_lost(attribute)]
        if lost:
            node.lost = lost
        for attribute in lost:
            node.attrs.pop(attribute.name, None)
        for inner, body in bodies_of(source, node):
            attach_metadata(inner, body)


def bodies_of(source: onnx.NodeProto, node: gs.Node) -> Iterator[tuple[onnx.GraphProto, gs.Graph]]:
    """Yield the bodies of a node, paired in proto and graph."""
    for attribute in source.attribute:
        if isinstance(body := node.attrs.get(attribute.name), gs.Graph):
            yield attribute.g, body


def restore_metadata(graph: gs.Graph, proto: onnx.GraphProto) -> None:
    """Write the kept properties of each node back."""
    for node, target in zip(graph.nodes, proto.node, strict=True):
        target.doc_string = ""  # a field that is present, though empty
        if isinstance(node, Node):
            target.doc_string = node.doc_string
            _write_entries(target, node.metadata)
            target.attribute.extend(node.lost)
        for inner, body in bodies_of(target, node):
            restore_metadata(body, inner)


def _is_lost(attribute: onnx.AttributeProto) -> bool:
    """Return whether graph-surgeon skips an attribute or fails on it: rare kinds, empty lists, not text."""
    if attribute.type not in _SURGEON_ATTRIBUTES or not _is_text(attribute):
        return True
    return attribute.type in _LISTS and not getattr(attribute, _LISTS[attribute.type])


def _is_text(attribute: onnx.AttributeProto) -> bool:
    """Return whether the strings of an attribute, if any, are UTF-8."""
    if attribute.type not in (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS):
        return True
    try:
        for text in (attribute.s, *attribute.strings):
            text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _write_entries(target: onnx.GraphProto | onnx.NodeProto, entries: dict[str, str]) -> None:
    for key, text in entries.items():
        target.metadata_props.add(key=key, value=text)


def notes_on_left_out(
    model: onnx.ModelProto, inlined: Sequence[onnx.FunctionProto], sparse: int
) -> list[str]:
    """Return notes on parts of a model that its graph does not have.

    ``inlined`` are the functions that it loses, ``sparse`` is the number of sparse tensors.
    """
    notes = []
    if inlined:
        notes.append(f"Local functions inlined: {len(inlined)}")
    if sparse:
        notes.append(f"Sparse tensors stored as dense ones: {sparse}")
    left_out = list(_left_out(model, inlined))
    if left_out:
        notes.append(f"Left out of the result: {', '.join(left_out)}")
    return notes


def _left_out(model: onnx.ModelProto, inlined: Sequence[onnx.FunctionProto]) -> Iterator[str]:
    if model.training_info:
        yield "training_info"
    if model.configuration:
        yield "device configurations"
    bodies = [graph for graph in each_graph(model.graph) if graph is not model.graph]
    if any(body.quantization_annotation for body in bodies):
        yield "quantization annotations inside bodies"
    if any(body.metadata_props for body in bodies):
        yield "metadata of bodies"
    if any(function.doc_string or function.metadata_props for function in inlined):
        yield "documentation and metadata of functions"
    tensors = (
        tensor for graph in (model.graph, *bodies) for tensor in (*graph.initializer, *graph.value_info)
    )
    if any(tensor.doc_string or tensor.metadata_props for tensor in tensors):
        yield "documentation and metadata of tensors"
