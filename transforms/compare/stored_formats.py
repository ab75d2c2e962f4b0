"""In which formats the weights of a model are stored, from its proto and from as few numbers as it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ops.formats import FORMATS, Format
from transforms.compare.light_file import LightFile
from transforms.functions import DOMAIN as PACKED
from transforms.functions.pack_constant import LastEncoded, may_be_packed, pack_constant
from transforms.functions.unpackers import format_of_op
from transforms.graph.lazy_values import Weight, load_values
from transforms.graph.proto_graphs import each_graph, each_node

PACKED_WORDS, ON_GRID_WORDS = " in codes", " as float32"
"""What follows the name of a block format: its true bits, or numbers on its grid."""

_NO_WEIGHTS = frozenset({"int64", "uint64", "bool", "string"})
"""Types of constants that are shapes, indices and switches."""

_BITS = {
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 6),
}
_SMALL = 256  # elements below which numbers are not looked at


@dataclass
class Row:
    """Tensors of one format: how many, their elements and bytes; ``is_weight``: not shapes or indices."""

    tensors: int = 0
    elements: int = 0
    bytes: int = 0
    is_weight: bool = True

    def add(self, elements: int, size: int) -> None:
        """Count one more."""
        self.tensors, self.elements, self.bytes = (
            self.tensors + 1,
            self.elements + elements,
            self.bytes + size,
        )

    @property
    def bits(self) -> float:
        """Bits per element."""
        return 8 * self.bytes / self.elements if self.elements else 0.0


def type_name(element: int) -> str:
    """Return the name of an element type as formats have it."""
    try:
        name = str(onnx.TensorProto.DataType.Name(element)).lower()
    except ValueError:
        return f"type {element}"
    return {"float": "float32", "double": "float64"}.get(name, name)


def tensor_bits(element: int) -> int:
    """Return the bits of an element as files store them."""
    try:
        name = onnx.TensorProto.DataType.Name(element)
        return _BITS.get(name) or 8 * int(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).itemsize)
    except (ValueError, KeyError, TypeError):
        return 0


def weight_rows(file: LightFile, formats: Sequence[Format] = ()) -> dict[str, Row]:
    """Return the constants of a model by format.

    Packed weights count by what they decode to. Large float32 weights in reach are looked at, one at a time,
    for the grid of ``formats`` (by default those of the table).
    """
    rows: dict[str, Row] = {}
    stored = {tensor.name: _stored_bytes(tensor) for tensor in _constants(file.model.graph)}
    codes = set[str]()
    for node in each_node(file.model.graph):
        found = format_of_op(node.op_type) if node.domain == PACKED else None
        if found is not None:
            codes.update(node.input)
            shape = next((list(a.ints) for a in node.attribute if a.name == "shape"), [])
            row = rows.setdefault(found[0].name + PACKED_WORDS, Row())
            row.add(math.prod(shape), sum(stored.get(name, 0) for name in set(node.input)))
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
    values = _values(tensor, mapped)
    if values is None or not may_be_packed(values):
        return None
    axes = sorted(range(values.ndim), key=lambda axis: axis != min(1, values.ndim - 1))
    known = sorted((f for f in formats or FORMATS.values() if f.block > 1), key=lambda fmt: fmt.bits)
    for fmt in known:
        for axis in axes:
            if pack_constant(values, fmt, axis, LastEncoded()) is not None:
                return fmt.name + ON_GRID_WORDS
    return None


def _values(tensor: onnx.TensorProto, mapped: Mapping[str, Weight]) -> np.ndarray | None:
    if tensor.name in mapped:
        return np.asarray(load_values(mapped[tensor.name]))
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except ValueError:
        return None
