"""Convert an ONNX model to a graph-surgeon graph and back, without loss and without copies of large weights.

graph-surgeon alone stores a captured weight again in every body that captures it, and drops everything
outside the graph proper. :mod:`transforms.model.metadata` keeps the latter,
:mod:`transforms.model.detached_weights` keeps large weights out of the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np
import onnx
import onnx.inliner
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

from transforms import features
from transforms.graph import walk
from transforms.graph.lazy_values import Weight, become_constant, stored
from transforms.graph.proto_graphs import each_node
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.typed import Graph, ModelInfo, info_of
from transforms.graph.unique_names import rename_hiding
from transforms.model.constant_size import count_constants
from transforms.model.detached_weights import (
    as_inputs,
    fill,
    sparse_tensors,
    split,
    without_data,
)
from transforms.model.export_graph import export_graph
from transforms.model.metadata import (
    attach_metadata,
    bodies_of,
    notes_on_left_out,
    read_info,
    restore_metadata,
    without_binary,
    write_info,
)
from transforms.model.shape_inference import all_sizes_known, clear_negative, infer_mended, infer_types
from transforms.model.tangles import refuse_tangles
from transforms.model.tied_types import add_types

_MOST_SIZES = 1 << 23
"""Elements of vectors that shape inference may treat as sizes: it needs some 40 bytes for each."""


Compare = Callable[[onnx.ModelProto, onnx.ModelProto, Mapping[str, Weight]], list[str]]
"""Compares a light model that has no local functions with the one that has them, and returns notes."""


def import_model(
    model: onnx.ModelProto,
    mapped: Mapping[str, Weight] = MappingProxyType({}),
    *,
    compare_inlined: Compare | None = None,
) -> Graph:
    """Return the model as a graph, with types and shapes inferred. The model is not changed.

    Initializers in ``mapped`` have no data in the model.

    Local functions are inlined, since decisions by operator schemas need operators. An initializer that is
    also a graph input (the rule in IR version 3) becomes a constant, and so do packed weights. Raises
    ModelError for a model that inlining, sparse tensors or constants would make too large, or whose nodes
    have no order, and whatever ``compare_inlined`` raises, which is called for models with local functions.
    """
    unpacked, weights = split(model, mapped)
    clear_negative(unpacked)
    for coded in features.coded_in(function.domain for function in unpacked.functions):
        coded.decode(unpacked, weights)
    light = inline(unpacked)
    refuse_tangles(light.graph)
    _write_default_axes(light.graph)
    inferred, notes = infer(light, weights)
    info = read_info(light)
    sparse = sum(1 for _ in sparse_tensors(model.graph.node, model.graph))
    info.notes = notes + notes_on_left_out(model, _inlined(unpacked, light), sparse)
    if light is not unpacked and compare_inlined is not None:
        info.notes += compare_inlined(unpacked, inferred, weights)
    return _import_inferred(inferred, weights, info)


def import_light(light: onnx.ModelProto, weights: dict[str, Weight], info: ModelInfo | None = None) -> Graph:
    """Return a light model with its weights as a graph, with types and shapes inferred."""
    inferred, notes = infer(light, weights)
    info = info or ModelInfo()
    info.notes += notes
    return _import_inferred(inferred, weights, info)


def inline(light: onnx.ModelProto) -> onnx.ModelProto:
    """Return a light model without local functions.

    Functions that stand for our operators are dropped, since their calls are the operators themselves.
    Raises ModelError for functions that would make it too large.
    """
    if light.functions:
        from transforms.functions.attach_functions import drop_own

        drop_own(light)
    if not light.functions:
        return light
    from transforms.model.local_functions import align_opsets, refuse_explosion, write_defaults

    refuse_explosion(light)
    align_opsets(light)
    return onnx.inliner.inline_local_functions(write_defaults(light))


def _inlined(full: onnx.ModelProto, light: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """Return the local functions of a model that its light form lacks."""
    if not full.functions:
        return []
    from transforms.model.local_functions import key_of

    remaining = set(map(key_of, light.functions))
    return [function for function in full.functions if key_of(function) not in remaining]


def infer(light: onnx.ModelProto, weights: Collection[str]) -> tuple[onnx.ModelProto, list[str]]:
    """Return a light model with one import per domain and all types and shapes that can be inferred.

    Declared shapes that contradict inference are cleared in ``light``, with a note for each. Raises
    ModelError for constants that folding would make too large. Values of shapes are followed unless all
    sizes are known without, or vectors are long, because inference treats each as the sizes of a tensor.
    """
    _unify_imports(light)
    rename_hiding(light.graph)
    inferred, mended = infer_mended(light)
    follow = count_constants(inferred, weights) <= _MOST_SIZES and not all_sizes_known(inferred.graph)
    if follow:
        inferred = infer_types(light, data_prop=True)
    if add_types(inferred):  # new ranks allow further inference
        inferred = infer_types(inferred, data_prop=follow)
        add_types(inferred)
    return inferred, mended


def inferred_shapes(graph: gs.Graph, feed: Mapping[str, np.ndarray]) -> dict[str, onnx.TypeProto.Tensor]:
    """Return the types inferred from the nodes of a graph and from inputs with the shapes of a feed.

    Declared shapes of other tensors are ignored; tensors without an inferred shape are left out.
    """
    light, weights = export_light(graph)
    model = as_inputs(light, weights)
    del model.graph.value_info[:], model.graph.output[:]
    for value in model.graph.input:
        if value.name in feed:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, feed[value.name].shape))
    types = ((value.name, value.type) for value in infer(model, weights)[0].graph.value_info)
    return {name: kind.tensor_type for name, kind in types if kind.tensor_type.HasField("shape")}


def _import_inferred(light: onnx.ModelProto, weights: dict[str, Weight], info: ModelInfo) -> Graph:
    with _quiet(), without_binary(light.graph):
        graph = Graph.adopt(gs.import_onnx(light), info)
    for tensor in graph.inputs:
        if tensor.name in weights:
            become_constant(tensor, weights[tensor.name])
    graph.inputs = [tensor for tensor in graph.inputs if not isinstance(tensor, gs.Constant)]
    _forget_rare_types(graph)
    attach_metadata(light.graph, graph)
    return graph


def export_model(graph: gs.Graph) -> onnx.ModelProto:
    """Return the graph as a complete model."""
    light, weights = export_light(graph)
    fill(light, weights)
    return light


def export_light(
    graph: gs.Graph, *, hide: Callable[[gs.Constant], bool] | None = None
) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """Return the graph as a model whose large initializers have type and shape but no data, and their arrays.

    Hidden are those for which ``hide`` is true, by default the large ones.
    """
    with _quiet(), without_data(graph, hide) as weights:
        model = export_graph(graph)
    _store_constants_once(graph, model.graph)
    restore_metadata(graph, model.graph)
    _unify_imports(model)
    least = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    model.ir_version = max(model.ir_version, least, 4)
    write_info(info_of(graph), model)
    for coded in features.coded_in(opset.domain for opset in model.opset_import):
        coded.attach(model)
    return model, weights


def _write_default_axes(graph: onnx.GraphProto) -> None:
    """Write the default axes of each MeanVarianceNormalization, in place, also in bodies.

    From opset 13 on the operator is a function whose Constant takes the attribute, and onnx's checker
    rejects the Constant if the node lacks it.
    """
    for node in each_node(graph):
        is_one = node.op_type == "MeanVarianceNormalization" and node.domain in STANDARD_DOMAINS
        if is_one and all(attribute.name != "axes" for attribute in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))


def model_hash(graph: gs.Graph) -> str:
    """Return a SHA-256 of a graph with all its weights."""
    light, weights = export_light(graph)
    digest = hashlib.sha256(light.SerializeToString(deterministic=True))
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(stored(weights[name]).data)
    return digest.hexdigest()


def _unify_imports(model: onnx.ModelProto) -> None:
    """Keep one import per domain, the newest: some exporters write the default domain twice."""
    versions: dict[str, int] = {}
    for opset in model.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        versions[domain] = max(versions.get(domain, 0), opset.version)
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in versions.items())


def _forget_rare_types(graph: gs.Graph) -> None:
    """Remove the types of maps and optionals, which graph-surgeon exports as tensors.

    Types of the model's inputs and outputs are kept in its :class:`ModelInfo`; readers of the model infer
    the others.
    """
    for inner in walk.graphs(graph):
        for tensor in (*inner.inputs, *inner.outputs, *(t for node in inner.nodes for t in node.outputs)):
            if isinstance(tensor, gs.Variable) and tensor.type not in ("tensor_type", "sequence_type"):
                tensor.dtype = tensor.shape = None


def _store_constants_once(root: gs.Graph, proto: onnx.GraphProto) -> None:
    """Move each captured initializer to the graph that owns it, and drop the copies in the bodies."""
    if all(inner is root for inner in walk.graphs(root)):
        return
    pairs = list(_pairs(root, proto))
    owners = walk.constant_owners(root)
    protos = {id(inner): target for inner, target in pairs}
    for inner, target in pairs:
        local = {t.name: t for node in inner.nodes for t in node.inputs if isinstance(t, gs.Constant)}
        moved = {n: owners[id(t)] for n, t in local.items() if owners[id(t)] is not inner}
        for tensor in [t for t in target.initializer if t.name in moved]:
            owner = protos[id(moved[tensor.name])]
            if all(other.name != tensor.name for other in owner.initializer):
                owner.initializer.append(tensor)
            target.initializer.remove(tensor)
        _drop_foreign_values(inner, target)


def _drop_foreign_values(graph: gs.Graph, proto: onnx.GraphProto) -> None:
    """Drop the value_info of captured tensors: a body may only declare tensors that it produces."""
    produced = {tensor.name for node in graph.nodes for tensor in node.outputs}
    declared = [value for value in proto.value_info if value.name in produced]
    del proto.value_info[:]
    proto.value_info.extend(declared)


def _pairs(graph: gs.Graph, proto: onnx.GraphProto) -> Iterator[tuple[gs.Graph, onnx.GraphProto]]:
    yield graph, proto
    for node, target in zip(graph.nodes, proto.node, strict=True):
        for inner, body in bodies_of(target, node):
            yield from _pairs(body, inner)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep graph-surgeon from writing to standard output, which belongs to the tools."""
    with G_LOGGER.suppress(G_LOGGER.CRITICAL):
        yield
