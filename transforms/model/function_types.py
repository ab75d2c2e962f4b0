"""Types and shapes after operators that are only functions of others, of which onnx infers nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import onnx

from transforms.graph.rewire import STANDARD_DOMAINS


def infer_types(model: onnx.ModelProto, *, data_prop: bool = False, strict: bool = False) -> onnx.ModelProto:
    """Return what ``onnx.shape_inference.infer_shapes`` does, and also what GroupNormalization leads to.

    For the time of inference an Identity stands for each node of such an operator whose output has the type
    of its first input: GroupNormalization and MeanVarianceNormalization, which keep the shape as well.
    ``strict`` raises onnx's InferenceError for a shape that contradicts the nodes.
    """
    opset = max((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), default=1)
    places = [place for place, node in enumerate(_nodes(model.graph)) if _has_no_inference(node, opset)]
    if not places:
        return onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=data_prop)
    nodes = list(_nodes(model.graph))
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
    """Return whether every tensor of a graph has a size in all its dimensions, and no node has a body.

    Values of shapes, if inference followed them, would then tell nothing new.
    """
    known = set[str]()
    for value in (*graph.value_info, *graph.output, *graph.input):
        kind = value.type.tensor_type
        if not kind.HasField("shape") or not all(size.HasField("dim_value") for size in kind.shape.dim):
            return False
        known.add(value.name)
    for node in graph.node:
        if not known.issuperset(filter(None, node.output)) or any(a.HasField("g") for a in node.attribute):
            return False
    return True


def _put_back(model: onnx.ModelProto, places: list[int], originals: list[onnx.NodeProto]) -> None:
    nodes = list(_nodes(model.graph))
    for place, original in zip(places, originals, strict=True):
        nodes[place].CopyFrom(original)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a graph and of its bodies."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body)


def _has_no_inference(node: onnx.NodeProto, opset: int) -> bool:
    return node.domain in STANDARD_DOMAINS and _is_bare_function(node.op_type, opset)


@lru_cache(maxsize=4096)
def _is_bare_function(op: str, opset: int) -> bool:
    try:
        found = onnx.defs.get_schema(op, max_inclusive_version=opset)
    except onnx.defs.SchemaError:
        return False
    is_function = found.has_function or found.has_context_dependent_function  # type: ignore[attr-defined]
    follows = [p.type_str for p in found.outputs] == [found.inputs[0].type_str] if found.inputs else False
    return is_function and follows and not found.has_type_and_shape_inference_function
