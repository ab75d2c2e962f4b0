"""Export a graph as an ONNX model, field for field like graph-surgeon, in a third of the time.

Messages are created in place; recurring types and attributes are created once. Rare cases are left to
graph-surgeon.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter, dtype_to_onnx, update_import_domains
from onnx_graphsurgeon.ir.tensor import SparseValues

_PLAIN = "fiub"
"""NumPy's own number types, whose arrays are stored as they are."""

_TENSOR = "tensor_type"


def export_graph(graph: gs.Graph) -> onnx.ModelProto:
    """Return the model that ``gs.export_onnx(graph, do_type_check=False)`` returns."""
    functions = [OnnxExporter.export_function(function) for function in graph.functions]
    model = onnx.helper.make_model(
        onnx.GraphProto(), functions=functions, opset_imports=update_import_domains(graph)
    )
    _Exporter().write(graph, model.graph)
    model.producer_name, model.producer_version = graph.producer_name, graph.producer_version
    if graph.ir_version is not None:
        model.ir_version = graph.ir_version
    return model


class _Exporter:
    """Fills graph messages, with a cache of types and attributes."""

    def __init__(self) -> None:
        self._types: dict[tuple[int, tuple[object, ...] | None], onnx.TypeProto] = {}
        self._attributes: dict[tuple[str, object], onnx.AttributeProto] = {}

    def write(self, graph: gs.Graph, proto: onnx.GraphProto) -> None:
        """Write nodes, initializers, inputs, outputs and types of a graph into an empty message."""
        proto.name = graph.name
        if graph.doc_string:
            proto.doc_string = graph.doc_string
        for node in graph.nodes:
            self._write_node(node, proto.node.add())
        ends = {tensor.name for tensor in (*graph.inputs, *graph.outputs)}
        proto.input.extend(self._value(tensor) for tensor in graph.inputs)
        proto.output.extend(self._value(tensor) for tensor in graph.outputs)
        for name, tensor in _tensors(graph).items():
            if isinstance(tensor, gs.Constant):
                _write_constant(tensor, proto)
            elif name not in ends and (tensor.dtype is not None or tensor.shape is not None):
                proto.value_info.append(self._value(tensor))

    def _write_node(self, node: gs.Node, proto: onnx.NodeProto) -> None:
        proto.op_type = node.op
        proto.input.extend([tensor.name for tensor in node.inputs])
        proto.output.extend([tensor.name for tensor in node.outputs])
        if node.name:
            proto.name = node.name
        if node.domain is not None:
            proto.domain = node.domain
        for key, value in node.attrs.items():
            if isinstance(value, gs.Graph):
                attribute = proto.attribute.add(name=key, type=onnx.AttributeProto.GRAPH)
                self.write(value, attribute.g)
            elif _is_whole(value):
                proto.attribute.append(self._attribute(key, value))
            else:
                proto.attribute.extend(OnnxExporter.export_attributes({key: value}))

    def _attribute(self, name: str, value: int | str | list[int]) -> onnx.AttributeProto:
        key = name, tuple(value) if isinstance(value, list) else value
        found = self._attributes.get(key)
        if found is None:
            found = self._attributes[key] = onnx.helper.make_attribute(name, value)
        return found

    def _value(self, tensor: gs.Tensor) -> onnx.ValueInfoProto:
        if tensor.dtype is None or not (isinstance(tensor, gs.Constant) or tensor.type == _TENSOR):
            return OnnxExporter.export_value_info_proto(tensor, do_type_check=False)
        key = _element(tensor.dtype), None if tensor.shape is None else tuple(tensor.shape)
        kind = self._types.get(key)
        if kind is None:
            kind = self._types[key] = onnx.helper.make_tensor_type_proto(key[0], tensor.shape)
        return onnx.ValueInfoProto(name=tensor.name, type=kind)


def _is_whole(value: Any) -> bool:
    """Return whether an attribute is an integer, a string or integers: equal values are exported alike."""
    kind = type(value)
    return kind in (int, str) or (kind is list and bool(value) and all(type(item) is int for item in value))


def _tensors(graph: gs.Graph) -> dict[str, gs.Tensor]:
    """Return the result of ``graph.tensors()``: names in order of first use, each with its last tensor."""
    by_name = {tensor.name: tensor for tensor in graph.inputs}
    for node in graph.nodes:
        for tensor in node.inputs:
            by_name[tensor.name] = tensor
        for tensor in node.outputs:
            by_name[tensor.name] = tensor
    by_name |= {tensor.name: tensor for tensor in graph.outputs}
    by_name.pop("", None)
    return by_name


def _write_constant(tensor: gs.Constant, proto: onnx.GraphProto) -> None:
    values = tensor._values
    if isinstance(values, SparseValues):
        proto.sparse_initializer.append(OnnxExporter.export_sparse_tensor_proto(tensor))
    elif type(values) is np.ndarray and values.dtype.kind in _PLAIN and tensor._export_dtype is None:
        initializer = proto.initializer.add(
            name=tensor.name, data_type=_element(values.dtype), dims=values.shape
        )
        initializer.raw_data = values.tobytes()
        if tensor.data_location is not None:
            initializer.data_location = tensor.data_location
    else:
        proto.initializer.append(OnnxExporter.export_tensor_proto(tensor))


def _element(dtype: Any) -> int:
    return dtype if isinstance(dtype, int) else _element_of(dtype)


@lru_cache(maxsize=256)
def _element_of(dtype: Any) -> int:
    return int(dtype_to_onnx(dtype))
