"""The formats of a model's tensors: stored, computed and rounded ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ops.formats import ATTRIBUTES, FORMATS, Format, format_of
from transforms import features
from transforms.compare.light_file import LightFile, read_constant
from transforms.compare.node_formats import NARROW, rounded_type, type_name
from transforms.functions import DOMAIN as PACKED
from transforms.graph.lazy_values import Weight
from transforms.graph.proto_graphs import each_graph
from transforms.graph.qdq import DEQUANTIZE, QUANTIZE

PACKED_WORDS, ON_GRID_WORDS = " in codes", " as float32"
"""Suffixes of a block format's name: packed in its true bits, or float32 numbers on its grid."""

_NO_WEIGHTS = frozenset({"int64", "uint64", "bool", "string"})
"""Types of constants that hold shapes, indices and switches."""

_BITS = {
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 6),
}
_SMALL = 256  # elements below which values are not examined


@dataclass
class Row:
    """Tensors of one format: count, elements and bytes; ``is_weight``: not shapes or indices."""

    tensors: int = 0
    elements: int = 0
    bytes: int = 0
    is_weight: bool = True

    def add(self, elements: int, size: int) -> None:
        """Count one more tensor."""
        self.tensors, self.elements, self.bytes = (
            self.tensors + 1,
            self.elements + elements,
            self.bytes + size,
        )

    @property
    def bits(self) -> float:
        """Bits per element."""
        return 8 * self.bytes / self.elements if self.elements else 0.0


def tensor_bits(element: int) -> int:
    """Return the bits of an element in files."""
    try:
        name = onnx.TensorProto.DataType.Name(element)
        return _BITS.get(name) or 8 * int(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).itemsize)
    except (ValueError, KeyError, TypeError):
        return 0


def weight_rows(file: LightFile, formats: Sequence[Format] = ()) -> dict[str, Row]:
    """Return the constants of a model by format.

    Packed weights count in the format to which they decode. Large accessible float32 weights are examined,
    one at a time, for the grids of ``formats`` (by default those of the table).
    """
    rows: dict[str, Row] = {}
    stored = {tensor.name: _stored_bytes(tensor) for tensor in _constants(file.model.graph)}
    codes = set[str]()
    for coded in features.coded_in([PACKED]):
        for fmt, elements, inputs in coded.calls(file.model):
            codes |= inputs
            row = rows.setdefault(fmt.name + PACKED_WORDS, Row())
            row.add(elements, sum(stored.get(name, 0) for name in inputs))
    for tensor in _constants(file.model.graph):
        if tensor.name in codes:
            continue
        name = _grid(tensor, file.mapped, formats) or type_name(tensor.data_type)
        row = rows.setdefault(name, Row(is_weight=name not in _NO_WEIGHTS))
        row.add(_count(tensor), _stored_bytes(tensor))
    return dict(sorted(rows.items(), key=lambda item: -item[1].bytes))


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for inner in each_graph(graph):
        yield from inner.initializer
        for sparse in inner.sparse_initializer:
            yield sparse.values
        for node in inner.node:
            if node.op_type == "Constant" and not node.domain:
                yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def _stored_bytes(tensor: onnx.TensorProto) -> int:
    return (_count(tensor) * tensor_bits(tensor.data_type) + 7) // 8


def _count(tensor: onnx.TensorProto) -> int:
    return math.prod(max(size, 0) for size in tensor.dims)


def _grid(tensor: onnx.TensorProto, mapped: Mapping[str, Weight], formats: Sequence[Format]) -> str | None:
    """Return the name of the block format on whose grid a float32 weight lies, along any axis, or None."""
    if tensor.data_type != onnx.TensorProto.FLOAT or not tensor.dims or _count(tensor) < _SMALL:
        return None
    values = read_constant(tensor, mapped)
    if values is None:
        return None
    axes = sorted(range(values.ndim), key=lambda axis: axis != min(1, values.ndim - 1))
    block_formats = sorted((f for f in formats or FORMATS.values() if f.block > 1), key=lambda fmt: fmt.bits)
    grids = (coded.grid_of(values, block_formats, axes) for coded in features.coded_in([PACKED]))
    return next((fmt.name + ON_GRID_WORDS for fmt in grids if fmt is not None), None)


_FLOATS = {int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.DOUBLE), *NARROW}


_OF_CONSTANTS = frozenset({"Cast", "Sub", "Mul", "Reshape", "Slice", "DequantizeLinear"})
"""Operators that compute a weight from stored integers, if all inputs are constants."""


class RoundedTensors:
    """Types and shapes of tensors by name, in a graph and its bodies, and their readers."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Take a model with types that were inferred or declared."""
        self._model = model
        self._kinds: dict[str, onnx.TypeProto.Tensor] = {}
        self._constants: dict[str, int] = {}
        self._readers: dict[str, set[str]] = {}
        for graph in each_graph(model.graph):
            for value in (*graph.input, *graph.output, *graph.value_info):
                self._kinds[value.name] = value.type.tensor_type
            self._constants.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
            for node in graph.node:
                is_weight = node.op_type in _OF_CONSTANTS and all(
                    name in self._constants for name in node.input
                )
                if is_weight or node.domain == PACKED or (node.op_type == "Constant" and not node.domain):
                    self._constants.update((name, 0) for name in node.output)
                for name in node.input:
                    self._readers.setdefault(name, set()).add(node.op_type)

    def rows(self) -> tuple[dict[str, Row], bool]:
        """Return the computed tensors by format, and whether all their sizes are known.

        Counted are tensors that are rounded to a format, and floats with a reader other than a rounding. An
        unknown size counts as 1. Weights that nodes round in every run do not count.
        """
        rows: dict[str, Row] = {}
        are_known = True
        for graph in each_graph(self._model.graph):
            for node in graph.node:
                for name, bits, output in self._of(node):
                    elements, is_known = self._elements(output)
                    are_known &= is_known
                    rows.setdefault(name, Row()).add(elements, int(elements * bits + 7) // 8)
        return dict(sorted(rows.items(), key=lambda item: -item[1].bytes)), are_known

    def rounded_weights(self) -> Counter[str]:
        """Return the number of constants that nodes round in every run, by format."""
        counts: Counter[str] = Counter()
        for graph in each_graph(self._model.graph):
            for node in graph.node:
                rounding = self._rounding(node)
                if rounding and node.input[0] in self._constants:
                    counts[rounding[0]] += 1
        return counts

    def _of(self, node: onnx.NodeProto) -> list[tuple[str, float, str]]:
        """Return format, bits and name of each output of a node that counts."""
        if rounding := self._rounding(node):
            is_computed = node.input[0] not in self._constants
            return [(*rounding, node.output[0])] if is_computed else []
        if node.op_type in DEQUANTIZE or node.op_type == "Cast" or node.domain == PACKED:
            return []
        outputs = []
        for name in node.output:
            kind = self._kinds[name].elem_type if name in self._kinds else 0
            roundings = QUANTIZE | ATTRIBUTES.keys() | {"Cast"}
            if kind in _FLOATS and name not in self._constants and self._readers.get(name, {""}) - roundings:
                outputs.append((type_name(kind), float(tensor_bits(kind)), name))
        return outputs

    def _rounding(self, node: onnx.NodeProto) -> tuple[str, float] | None:
        """Return the format to which a node rounds and its bits, None for other nodes."""
        if node.op_type in ATTRIBUTES and node.input:
            values = {
                a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name
            }
            try:
                attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}
                fmt = format_of(node.op_type, attributes)
            except ValueError:
                return None
            return (fmt.name, fmt.bits) if fmt else None
        numbers = {a.name: a.i for a in node.attribute}
        zero_point = self._constants.get(node.input[2], 0) if len(node.input) > 2 else 0
        output = self._kinds[node.output[0]].elem_type if node.output[0] in self._kinds else 0
        op = node.op_type if node.op_type in QUANTIZE or not node.domain else ""
        kind = rounded_type(op, numbers, zero_point, output)
        return (type_name(kind), float(tensor_bits(kind))) if kind else None

    def _elements(self, name: str) -> tuple[int, bool]:
        kind = self._kinds.get(name)
        if kind is None or not kind.HasField("shape"):
            return 1, False
        sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        return math.prod(1 if size is None else max(size, 0) for size in sizes), None not in sizes
