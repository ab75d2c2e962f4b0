"""From an ONNX model to a graph-surgeon graph and back, without loss and without copies of large weights.

graph-surgeon alone drops the model's domain, version, documentation and metadata, the documentation and
metadata of nodes, quantization annotations, types that are not tensors, and attributes of the rarer kinds;
it also stores a captured weight once more in every body that captures it. All of that is carried across here.

Weights of ``LARGE`` bytes and more stay NumPy arrays beside a *light* model in which they have no data.
Whatever an onnx or ONNX Runtime pass has to see is the light model, so that its cost does not depend on
the size of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.inliner
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues
from onnx_graphsurgeon.logger import G_LOGGER

from transforms import walk
from transforms.densify import densify

LARGE = 1 << 16
"""Bytes from which a weight is kept out of the light model."""

_ARRAY_TYPE_NAMES = (
    *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL"),
    *("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"),
)
_ARRAY_TYPES = frozenset(onnx.TensorProto.DataType.Value(name) for name in _ARRAY_TYPE_NAMES)
_INVENTED = "unk__"
"""How onnx.shape_inference begins the names of dimensions that it can not know."""

_SURGEON_ATTRIBUTES = frozenset(
    onnx.AttributeProto.AttributeType.Value(name)
    for name in ("FLOAT", "INT", "STRING", "TENSOR", "GRAPH", "FLOATS", "INTS", "STRINGS")
)
_LISTS = {
    onnx.AttributeProto.FLOATS: "floats",
    onnx.AttributeProto.INTS: "ints",
    onnx.AttributeProto.STRINGS: "strings",
}


@dataclass
class ModelInfo:
    """What a model says of itself beside its graph; ``graph.info`` of every graph that was loaded here."""

    domain: str = ""
    model_version: int = 0
    doc_string: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    graph_metadata: dict[str, str] = field(default_factory=dict)
    annotations: list[onnx.TensorAnnotation] = field(default_factory=list)
    interface: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)


class _Node(gs.Node):
    """A node that equals itself alone.

    Nodes of graph-surgeon are equal when they do the same, and its lists of users remove the first equal one:
    of two unnamed nodes in the branches of an If, the wrong one.
    """

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def import_model(model: onnx.ModelProto) -> gs.Graph:
    """Return the model as a graph, with types and shapes inferred. The model is not changed.

    Local functions are inlined, for what is decided by operator schemas needs operators. An initializer
    that is also a graph input (the rule in IR version 3) becomes a constant.
    """
    light, weights = split(model)
    if light.functions:
        light = onnx.inliner.inline_local_functions(light)
    graph = import_light(light, weights)
    graph.info = _model_info(light)
    return graph


def import_light(light: onnx.ModelProto, weights: dict[str, np.ndarray]) -> gs.Graph:
    """Return a light model with its weights as a graph, with types and shapes inferred."""
    _unify_imports(light)
    light = onnx.shape_inference.infer_shapes(light, data_prop=True)
    with _quiet():
        graph = gs.import_onnx(light)
    for tensor in graph.inputs:
        if tensor.name in weights:
            tensor.to_constant(weights[tensor.name])
    graph.inputs = [tensor for tensor in graph.inputs if not isinstance(tensor, gs.Constant)]
    _forget_rare_types(graph)
    _carry_in(light.graph, graph)
    return graph


def split(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a copy of the model in which large weights are graph inputs, and their arrays by name."""
    light = onnx.ModelProto()
    _copy_fields(model, light, skip={"graph"})
    _copy_fields(model.graph, light.graph, skip={"initializer"})
    densify(light.graph)
    inputs = {value.name for value in model.graph.input}
    weights = {}
    for tensor in model.graph.initializer:
        if tensor.data_type not in _ARRAY_TYPES or _num_bytes(tensor) < LARGE:
            light.graph.initializer.append(tensor)
            continue
        weights[tensor.name] = onnx.numpy_helper.to_array(tensor)
        if tensor.name not in inputs:
            light.graph.input.append(placeholder(tensor))
    return light, weights


def export_model(graph: gs.Graph) -> onnx.ModelProto:
    """Return the graph as a complete model."""
    light, weights = export_light(graph)
    fill(light, weights)
    return light


def export_light(
    graph: gs.Graph, *, hide: Callable[[gs.Constant], bool] | None = None
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the graph as a model whose large initializers have type and shape but no data, and their arrays.

    Of the large ones only those are hidden for which ``hide`` is true, where it is given.
    """
    with _quiet(), _without_data(graph, hide) as weights:
        model = gs.export_onnx(graph, do_type_check=False)
    _store_constants_once(graph, model.graph)
    _carry_out(graph, model.graph)
    _unify_imports(model)
    least = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    model.ir_version = max(model.ir_version, least, 4)
    _write_info(getattr(graph, "info", ModelInfo()), model)
    return model, weights


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


def _num_bytes(tensor: onnx.TensorProto) -> int:
    count = int(np.prod(tensor.dims, dtype=np.int64))
    return count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


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


def _unify_imports(model: onnx.ModelProto) -> None:
    """Keep one import per domain, the newest: some exporters write the default domain twice."""
    versions: dict[str, int] = {}
    for opset in model.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        versions[domain] = max(versions.get(domain, 0), opset.version)
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in versions.items())


def _model_info(model: onnx.ModelProto) -> ModelInfo:
    interface = [*model.graph.input, *model.graph.output]
    return ModelInfo(
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        metadata={entry.key: entry.value for entry in model.metadata_props},
        graph_metadata={entry.key: entry.value for entry in model.graph.metadata_props},
        annotations=list(model.graph.quantization_annotation),
        interface={value.name: value for value in interface},
    )


def _write_info(info: ModelInfo, model: onnx.ModelProto) -> None:
    model.domain, model.model_version, model.doc_string = info.domain, info.model_version, info.doc_string
    onnx.helper.set_model_props(model, info.metadata)
    _write_entries(model.graph, info.graph_metadata)
    names = {t.name for t in model.graph.initializer} | {n for node in model.graph.node for n in node.output}
    model.graph.quantization_annotation.extend(a for a in info.annotations if a.tensor_name in names)
    for value in (*model.graph.input, *model.graph.output):
        before = info.interface.get(value.name)
        if before is None:
            continue
        if before.type.WhichOneof("value") != "tensor_type":
            value.CopyFrom(before)
        elif before.type.tensor_type.HasField("shape"):  # inference may have put numbers for symbols
            value.type.tensor_type.shape.CopyFrom(before.type.tensor_type.shape)
        if before.doc_string:
            value.doc_string = before.doc_string
        value.metadata_props.extend(before.metadata_props)


def _write_entries(target: onnx.GraphProto | onnx.NodeProto, entries: dict[str, str]) -> None:
    for key, text in entries.items():
        target.metadata_props.add(key=key, value=text)


def _forget_rare_types(graph: gs.Graph) -> None:
    """Leave maps and optionals without a type: graph-surgeon exports them as tensors. Types of inputs and
    outputs of the model are kept in its :class:`ModelInfo`, the others are inferred by whoever reads the
    model."""
    for inner in walk.graphs(graph):
        for tensor in (*inner.inputs, *inner.outputs, *(t for node in inner.nodes for t in node.outputs)):
            if isinstance(tensor, gs.Variable) and tensor.type not in ("tensor_type", "sequence_type"):
                tensor.dtype = tensor.shape = None


def _carry_in(proto: onnx.GraphProto, graph: gs.Graph) -> None:
    """Hang on each node what graph-surgeon does not keep, and drop what it can not export again."""
    for source, node in zip(proto.node, graph.nodes, strict=True):
        node.__class__ = _Node
        node.doc_string = source.doc_string
        node.metadata = {entry.key: entry.value for entry in source.metadata_props}
        node.carried = [attribute for attribute in source.attribute if _is_lost(attribute)]
        for attribute in node.carried:
            node.attrs.pop(attribute.name, None)
        inner = {attribute.name: attribute.g for attribute in source.attribute}
        for name, body in node.attrs.items():
            if isinstance(body, gs.Graph):
                _carry_in(inner[name], body)


def _is_lost(attribute: onnx.AttributeProto) -> bool:
    """Return whether graph-surgeon skips the attribute, or fails to export it: rare kinds and empty lists."""
    if attribute.type not in _SURGEON_ATTRIBUTES:
        return True
    return attribute.type in _LISTS and not getattr(attribute, _LISTS[attribute.type])


def _carry_out(graph: gs.Graph, proto: onnx.GraphProto) -> None:
    for node, target in zip(graph.nodes, proto.node, strict=True):
        target.doc_string = getattr(node, "doc_string", "")
        _write_entries(target, getattr(node, "metadata", {}))
        target.attribute.extend(getattr(node, "carried", ()))
        inner = {attribute.name: attribute.g for attribute in target.attribute}
        for name, body in node.attrs.items():
            if isinstance(body, gs.Graph):
                _carry_out(body, inner[name])


def _store_constants_once(root: gs.Graph, proto: onnx.GraphProto) -> None:
    """Move each captured initializer to the graph that it belongs to, and drop the copies in the bodies."""
    homes = walk.constant_homes(root)
    pairs = list(_pairs(root, proto))
    protos = {id(inner): target for inner, target in pairs}
    for inner, target in pairs:
        local = {t.name: t for node in inner.nodes for t in node.inputs if isinstance(t, gs.Constant)}
        moved = {n: homes[id(t)] for n, t in local.items() if homes[id(t)] is not inner}
        for tensor in [t for t in target.initializer if t.name in moved]:
            home = protos[id(moved[tensor.name])]
            if all(other.name != tensor.name for other in home.initializer):
                home.initializer.append(tensor)
            target.initializer.remove(tensor)
        _clean_values(inner, target)


def _clean_values(graph: gs.Graph, proto: onnx.GraphProto) -> None:
    """Drop the value_info of captured tensors, and names of dimensions that shape inference made up.

    A body may declare only what it produces itself. The invented names are unique in one inference alone:
    after several they may call different sizes the same, which runtimes take at its word.
    """
    own = {tensor.name for node in graph.nodes for tensor in node.outputs}
    kept = [value for value in proto.value_info if value.name in own]
    del proto.value_info[:]
    proto.value_info.extend(kept)
    for value in proto.value_info:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param.startswith(_INVENTED):
                dimension.ClearField("dim_param")


def _pairs(graph: gs.Graph, proto: onnx.GraphProto) -> Iterator[tuple[gs.Graph, onnx.GraphProto]]:
    yield graph, proto
    for node, target in zip(graph.nodes, proto.node, strict=True):
        inner = {attribute.name: attribute.g for attribute in target.attribute}
        for name, body in node.attrs.items():
            if isinstance(body, gs.Graph):
                yield from _pairs(body, inner[name])


@contextmanager
def _without_data(
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep graph-surgeon from writing to standard output, which belongs to the tools."""
    with G_LOGGER.suppress(G_LOGGER.CRITICAL):
        yield
