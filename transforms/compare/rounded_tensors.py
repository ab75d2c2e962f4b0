"""In which formats the computed tensors of a model are, from its proto."""

from __future__ import annotations

import math
from collections import Counter

import onnx

from ops.formats import ATTRIBUTES, format_of
from transforms.compare.stored_formats import Row, tensor_bits, type_name
from transforms.functions import DOMAIN as PACKED
from transforms.graph.proto_graphs import each_graph

_QUANTIZE = frozenset({"QuantizeLinear", "ExtendedQuantizeLinear"})
_DEQUANTIZE = frozenset({"DequantizeLinear", "ExtendedDequantizeLinear"})
_NARROW = {int(onnx.TensorProto.BFLOAT16), int(onnx.TensorProto.FLOAT16)}
_FLOATS = {int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.DOUBLE), *_NARROW}


class RoundedTensors:
    """Types and shapes of a graph's tensors by name, of its bodies too, and who reads them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Take a model with the types that are known, inferred or written down."""
        self._model = model
        self._kinds: dict[str, onnx.TypeProto.Tensor] = {}
        self._constants: dict[str, int] = {}
        self._readers: dict[str, set[str]] = {}
        for graph in each_graph(model.graph):
            for value in (*graph.input, *graph.output, *graph.value_info):
                self._kinds[value.name] = value.type.tensor_type
            self._constants.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
            for node in graph.node:
                if node.domain == PACKED or (node.op_type == "Constant" and not node.domain):
                    self._constants.update((name, 0) for name in node.output)
                for name in node.input:
                    self._readers.setdefault(name, set()).add(node.op_type)

    def rows(self) -> tuple[dict[str, Row], bool]:
        """Return the computed tensors by format, and whether all their sizes are known.

        Those are counted that are rounded to a format, in it, and floats that something but a rounding reads.
        A size that is not known counts as 1. Weights that nodes round in every run do not count.
        """
        rows: dict[str, Row] = {}
        known = True
        for graph in each_graph(self._model.graph):
            for node in graph.node:
                for name, bits, output in self._of(node):
                    elements, is_known = self._elements(output)
                    known &= is_known
                    rows.setdefault(name, Row()).add(elements, int(elements * bits + 7) // 8)
        return dict(sorted(rows.items(), key=lambda item: -item[1].bytes)), known

    def rounded_weights(self) -> Counter[str]:
        """Return how many constants nodes round in every run, by format."""
        found: Counter[str] = Counter()
        for graph in each_graph(self._model.graph):
            for node in graph.node:
                rounding = self._rounding(node)
                if rounding and node.input[0] in self._constants:
                    found[rounding[0]] += 1
        return found

    def _of(self, node: onnx.NodeProto) -> list[tuple[str, float, str]]:
        """Return format, bits and name of each output of a node that counts."""
        if rounding := self._rounding(node):
            made = node.input[0] not in self._constants
            return [(*rounding, node.output[0])] if made else []
        if node.op_type in _DEQUANTIZE or node.op_type == "Cast" or node.domain == PACKED:
            return []
        found = []
        for name in node.output:
            kind = self._kinds[name].elem_type if name in self._kinds else 0
            roundings = _QUANTIZE | ATTRIBUTES.keys() | {"Cast"}
            if kind in _FLOATS and name not in self._constants and self._readers.get(name, {""}) - roundings:
                found.append((type_name(kind), float(tensor_bits(kind)), name))
        return found

    def _rounding(self, node: onnx.NodeProto) -> tuple[str, float] | None:
        """Return the format that a node rounds to and its bits, None for other nodes."""
        if node.op_type in ATTRIBUTES and node.input:
            values = {
                a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name
            }
            try:
                given = {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}
                fmt = format_of(node.op_type, given)
            except ValueError:
                return None
            return (fmt.name, fmt.bits) if fmt else None
        kind = 0
        if node.op_type in _QUANTIZE:
            kind = self._quantized_type(node)
        elif node.op_type == "Cast" and not node.domain:
            kind = next((a.i for a in node.attribute if a.name == "to"), 0)
            kind = kind if kind in _NARROW else 0
        return (type_name(kind), float(tensor_bits(kind))) if kind else None

    def _quantized_type(self, node: onnx.NodeProto) -> int:
        given = next((a.i for a in node.attribute if a.name == "output_dtype"), 0)
        zero_point = node.input[2] if len(node.input) > 2 else ""
        known = self._constants.get(zero_point, 0)
        output = self._kinds[node.output[0]].elem_type if node.output[0] in self._kinds else 0
        return int(given or known or output or onnx.TensorProto.UINT8)

    def _elements(self, name: str) -> tuple[int, bool]:
        kind = self._kinds.get(name)
        if kind is None or not kind.HasField("shape"):
            return 1, False
        sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        return math.prod(1 if size is None else max(size, 0) for size in sizes), None not in sizes
