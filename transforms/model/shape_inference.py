"""Infer types and shapes from the nodes, and find declared shapes that contradict them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from transforms.graph.proto_graphs import each_graph, each_node
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.model.metadata import contradicts, tensor_types

_KEEP_SHAPE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators for which onnx infers nothing; their output has the type and shape of their first input."""


def infer_types(model: onnx.ModelProto, *, data_prop: bool = False, strict: bool = False) -> onnx.ModelProto:
    """Return the result of ``onnx.shape_inference.infer_shapes``, extended across GroupNormalization.

    During inference an Identity replaces each node that keeps the shape.
    ``strict`` raises onnx's InferenceError for a shape that contradicts the nodes.
    """
    nodes = list(each_node(model.graph))
    standard = ((i, node.op_type) for i, node in enumerate(nodes) if node.domain in STANDARD_DOMAINS)
    places = [i for i, op_type in standard if op_type in _KEEP_SHAPE]
    originals = [onnx.NodeProto.FromString(nodes[place].SerializeToString()) for place in places]
    for place in places:
        identity = onnx.helper.make_node("Identity", nodes[place].input[:1], nodes[place].output)
        nodes[place].CopyFrom(identity)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=data_prop)
    finally:
        _put_back(model, places, originals)
    _put_back(inferred, places, originals)
    return inferred


def all_sizes_known(graph: onnx.GraphProto) -> bool:
    """Return whether every tensor of a graph has fixed sizes, and no node has a body.

    Following values of shapes in inference would then add nothing.
    """
    sized = set[str]()
    for value in (*graph.value_info, *graph.output, *graph.input):
        kind = value.type.tensor_type
        if not kind.HasField("shape") or not all(size.HasField("dim_value") for size in kind.shape.dim):
            return False
        sized.add(value.name)
    for node in graph.node:
        if not sized.issuperset(filter(None, node.output)) or any(a.HasField("g") for a in node.attribute):
            return False
    return True


def _put_back(model: onnx.ModelProto, places: list[int], originals: list[onnx.NodeProto]) -> None:
    nodes = list(each_node(model.graph))
    for place, original in zip(places, originals, strict=True):
        nodes[place].CopyFrom(original)


_UNKNOWN = "unk__"  # prefix of names that onnx's inference invents for lengths


def infer_mended(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Return a model with inferred types and shapes, and a note for each declared shape that was wrong.

    Runtimes follow the nodes and only warn about such a shape; the full checker rejects the model. The
    shapes of outputs and inner tensors that contradict inference are cleared in ``model`` itself; all others
    stay.
    """
    try:
        return infer_types(model, strict=True), []
    except onnx.shape_inference.InferenceError:
        notes = _clear_wrong(model)
    return infer_types(model), notes


def clear_negative(model: onnx.ModelProto) -> None:
    """Clear each declared size below zero, as ONNX Runtime does.

    Some exporters write -1 for a free length. onnx's inference computes with it, and the sizes it derives
    from a convolution of -1 rows are wrong for every input.
    """
    for graph in each_graph(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for kind in tensor_types(value.type):
                for size in kind.shape.dim:
                    if size.dim_value < 0:
                        size.ClearField("dim_value")


def _clear_wrong(model: onnx.ModelProto) -> list[str]:
    """Clear each declared shape that differs from the inferred one; return a note for each."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for graph in each_graph(bare.graph):
        for value in _declared(graph):
            value.type.tensor_type.ClearField("shape")
    inferred_model = infer_types(bare)
    notes = []
    for graph, inferred in zip(each_graph(model.graph), each_graph(inferred_model.graph), strict=True):
        shapes = {value.name: value.type for value in (*inferred.value_info, *inferred.output)}
        for value in _declared(graph):
            right = shapes.get(value.name)
            if right is not None and contradicts(value.type.tensor_type, right.tensor_type):
                notes.append(
                    f"The declared shape of '{value.name}' was wrong: {_text(value.type.tensor_type)}, its "
                    f"node makes {_text(right.tensor_type)}"
                )
                value.type.tensor_type.ClearField("shape")
    return notes


def _declared(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield each declared tensor with a shape that a standard node outputs: others have no inferred shape."""
    made = {name for node in graph.node if node.domain in STANDARD_DOMAINS for name in node.output}
    for value in (*graph.output, *graph.value_info):
        kind = value.type
        if value.name in made and kind.HasField("tensor_type") and kind.tensor_type.HasField("shape"):
            yield value


def _text(kind: onnx.TypeProto.Tensor) -> str:
    return f"[{', '.join(map(_length, kind.shape.dim))}]"


def _length(dim: onnx.TensorShapeProto.Dimension) -> str:
    if dim.HasField("dim_value"):
        return str(dim.dim_value)
    return "?" if not dim.dim_param or dim.dim_param.startswith(_UNKNOWN) else dim.dim_param
