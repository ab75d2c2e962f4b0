"""Keep large weights in mapped files: they take only page cache, and are never in one message.

A protobuf message is a list of fields, each with a tag, nested messages also with their length. Reading: the
fields of the model, its graph and its initializers are walked by tags and lengths, and everything except
large raw data of initializers is passed on, so that protobuf only parses the rest. Writing: the bytes that
protobuf itself would write, fields in the order of their numbers, with the weights one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.external_data_helper as external
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from transforms.graph.lazy_values import LARGE, Computed, Weight, stored, stored_bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
"""Numbers of the fields on the path to the large data of a model."""
_LONGEST_VARINT = 10  # bytes

_ARRAY_TYPE_NAMES = (
    *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL"),
    *("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"),
)
_ARRAY_TYPES = frozenset(onnx.TensorProto.DataType.Value(name) for name in _ARRAY_TYPE_NAMES)

Piece = bytes | memoryview


def copy_fields(source: Message, target: Message, is_chosen: Callable[[FieldDescriptor], bool]) -> None:
    """Copy the set and chosen fields of a message to an empty one of its type."""
    for field, value in source.ListFields():
        if not is_chosen(field):
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


@dataclass(frozen=True)
class Place:
    """The raw data of an initializer: its number in the graph, and its bytes in the file."""

    number: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Field:
    number: int
    begin: int  # of its tag
    content: int
    end: int
    is_bytes: bool


def without_raw_data(content: memoryview, least: int) -> tuple[bytes, list[Place]]:
    """Return the bytes of a model without raw data of initializers, and the places of these.

    Data of less than ``least`` bytes stay. Raises DecodeError for bytes that are not a message, and for the
    groups of old versions of protobuf.
    """
    scan = _Scan(content, least)
    return scan.model(), scan.places


class _Scan:
    def __init__(self, content: memoryview, least: int) -> None:
        self._content, self._least = content, least
        self._initializers = 0
        self.places: list[Place] = []

    def model(self) -> bytes:
        """Return the bytes without raw data; afterwards their places are known."""
        return b"".join(self._parts(0, len(self._content), GRAPH, self._graph))

    def _graph(self, begin: int, end: int) -> bytes:
        return b"".join(self._parts(begin, end, INITIALIZER, self._initializer))

    def _initializer(self, begin: int, end: int) -> bytes:
        number = self._initializers
        self._initializers += 1
        raw = [f for f in _fields(self._content, begin, end) if f.number == RAW_DATA and f.is_bytes]
        if all(field.end - field.content < self._least for field in raw):
            return bytes(self._content[begin:end])
        self.places.append(Place(number, raw[-1].content, raw[-1].end))  # the last of several counts
        borders = [begin, *(border for field in raw for border in (field.begin, field.end)), end]
        return b"".join(self._content[a:b] for a, b in zip(borders[::2], borders[1::2], strict=True))

    def _parts(
        self, begin: int, end: int, number: int, inner: Callable[[int, int], bytes]
    ) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a message, with the fields of one number replaced by ``inner``."""
        for field in _fields(self._content, begin, end):
            if field.number == number and field.is_bytes:
                made = inner(field.content, field.end)
                yield opening(number, len(made))
                yield made
            else:
                yield self._content[field.begin : field.end]


def _fields(content: memoryview, begin: int, end: int) -> Iterator[_Field]:
    place = begin
    while place < end:
        tag, start = _varint(content, place, end)
        kind = tag & 7
        if kind == _BYTES:
            length, start = _varint(content, start, end)
            stop = start + length
        elif kind == _VARINT:
            stop = _varint(content, start, end)[1]
        elif kind in (_FIXED64, _FIXED32):
            stop = start + (8 if kind == _FIXED64 else 4)
        else:
            raise DecodeError(f"a field of kind {kind}")
        if stop > end:
            raise DecodeError("a field that ends after its message")
        yield _Field(tag >> 3, place, start, stop, kind == _BYTES)
        place = stop


def _varint(content: memoryview, place: int, end: int) -> tuple[int, int]:
    """Return a number in groups of seven bits, lowest first, and the place after it."""
    value = 0
    for count in range(_LONGEST_VARINT):
        if place + count >= end:
            break
        byte = content[place + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, place + count + 1
    raise DecodeError("a number without end")


def opening(number: int, length: int) -> bytes:
    """Return the tag and the length that precede a field."""
    return _written(number << 3 | _BYTES) + _written(length)


def _written(value: int) -> bytes:
    """Return a number in groups of seven bits, lowest first; the top bit means that more follow."""
    groups = bytearray()
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes((*groups, value))


def pieces(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> Iterator[Piece]:
    """Yield the bytes of a light model whose initializers get the data of the weights with their names.

    They are the bytes that ``SerializeToString(deterministic=True)`` returns for the filled model.
    """
    graph = light.graph
    held = [weights.get(tensor.name) for tensor in graph.initializer]
    sizes = [_tensor_bytes(tensor, weight) for tensor, weight in zip(graph.initializer, held, strict=True)]
    head, tail = _around(graph, INITIALIZER)
    begin, end = _around(light, GRAPH)
    inner = sum(len(opening(INITIALIZER, size)) + size for size in sizes)
    yield begin
    yield opening(GRAPH, len(head) + inner + len(tail))
    yield head
    for tensor, weight, size in zip(graph.initializer, held, sizes, strict=True):
        yield opening(INITIALIZER, size)
        yield from _tensor(tensor, weight)
    yield tail
    yield end


def _tensor(tensor: onnx.TensorProto, weight: Weight | None) -> Iterator[Piece]:
    if weight is None:
        yield tensor.SerializeToString(deterministic=True)
        return
    begin, end = _around(tensor, RAW_DATA)
    yield begin
    yield opening(RAW_DATA, stored_bytes(weight))
    yield stored(weight).data
    yield end


def _tensor_bytes(tensor: onnx.TensorProto, weight: Weight | None) -> int:
    if weight is None:
        return tensor.ByteSize()
    length = stored_bytes(weight)
    return tensor.ByteSize() + len(opening(RAW_DATA, length)) + length


def _around(message: Message, number: int) -> tuple[bytes, bytes]:
    """Return the bytes of a message's fields before those of a number, and of the fields after them."""
    before, after = type(message)(), type(message)()
    copy_fields(message, before, lambda field: field.number < number)
    copy_fields(message, after, lambda field: field.number > number)
    return before.SerializeToString(deterministic=True), after.SerializeToString(deterministic=True)


def is_heavy(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor claims to be large, with a type whose bytes are those of a NumPy array."""
    if tensor.data_type not in _ARRAY_TYPES:
        return False
    return math.prod(tensor.dims) * _dtype(tensor).itemsize >= LARGE


def weight_at(content: NDArray[np.uint8], offset: int, tensor: onnx.TensorProto) -> Weight:
    """Return the array of a tensor whose bytes begin at an offset of a mapped file.

    It is a view of the file or, where NumPy cannot read it in place, a copy made at each use.
    """
    dtype, shape = _dtype(tensor), tuple(tensor.dims)
    raw = content[offset : offset + math.prod(shape) * dtype.itemsize]
    if offset % dtype.itemsize:
        return Computed(shape, dtype, lambda: raw.copy().view(dtype).reshape(shape))
    return raw.view(dtype).reshape(shape)


def parse_in_place(content: NDArray[np.uint8]) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """Return the model in the bytes of a file, and its large initializers in place, by name.

    These have no data in the model, which marks them as external. Raises DecodeError for other bytes.
    """
    model, view = onnx.ModelProto(), content.data
    light, places = without_raw_data(view, LARGE)
    model.ParseFromString(light)
    heavy = {tensor.name for tensor in unique_heavy(model.graph)}
    mapped: dict[str, Weight] = {}
    for place in places:
        tensor = model.graph.initializer[place.number]
        claimed = math.prod(tensor.dims) * _dtype(tensor).itemsize if tensor.name in heavy else None
        if external.uses_external_data(tensor) or place.end - place.begin != claimed:
            tensor.raw_data = bytes(view[place.begin : place.end])
            continue
        mapped[tensor.name] = weight_at(content, place.begin, tensor)
        tensor.data_location = onnx.TensorProto.EXTERNAL
    return model, mapped


def unique_heavy(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Return the large initializers of a graph with unique names."""
    count = Counter(tensor.name for tensor in graph.initializer)
    return [tensor for tensor in graph.initializer if is_heavy(tensor) and count[tensor.name] == 1]


def _dtype(tensor: onnx.TensorProto) -> np.dtype[np.generic]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
