"""The bytes of a model in pieces: large weights are not in the message, but follow one by one.

A protobuf message is the list of its fields, each with a tag, and the fields of messages inside also with
their length. What protobuf itself would write, fields in the order of their numbers, is written here without
ever holding the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from transforms.graph.lazy_values import Weight, stored, stored_bytes
from transforms.model.copy_fields import copy_fields
from transforms.model.wire_scan import GRAPH, INITIALIZER, RAW_DATA, opening

Piece = bytes | memoryview
_Choice = Callable[[FieldDescriptor], bool]


def pieces(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> Iterator[Piece]:
    """Yield the bytes of a light model whose initializers have the data of the weights of their name.

    They are those that ``SerializeToString(deterministic=True)`` returns for the filled model.
    """
    graph = light.graph
    held = [weights.get(tensor.name) for tensor in graph.initializer]
    sizes = [_tensor_bytes(tensor, weight) for tensor, weight in zip(graph.initializer, held, strict=True)]
    head, tail = (_fields(graph, chosen) for chosen in (_before(INITIALIZER), _after(INITIALIZER)))
    inner = sum(len(opening(INITIALIZER, size)) + size for size in sizes)
    yield _fields(light, _before(GRAPH))
    yield opening(GRAPH, len(head) + inner + len(tail))
    yield head
    for tensor, weight, size in zip(graph.initializer, held, sizes, strict=True):
        yield opening(INITIALIZER, size)
        yield from _tensor(tensor, weight)
    yield tail
    yield _fields(light, _after(GRAPH))


def _tensor(tensor: onnx.TensorProto, weight: Weight | None) -> Iterator[Piece]:
    if weight is None:
        yield tensor.SerializeToString(deterministic=True)
        return
    yield _fields(tensor, _before(RAW_DATA))
    yield opening(RAW_DATA, stored_bytes(weight))
    yield stored(weight).data
    yield _fields(tensor, _after(RAW_DATA))


def _tensor_bytes(tensor: onnx.TensorProto, weight: Weight | None) -> int:
    if weight is None:
        return tensor.ByteSize()
    length = stored_bytes(weight)
    return tensor.ByteSize() + len(opening(RAW_DATA, length)) + length


def _before(number: int) -> _Choice:
    return lambda field: field.number < number


def _after(number: int) -> _Choice:
    return lambda field: field.number > number


def _fields(message: Message, is_chosen: _Choice) -> bytes:
    """Return the bytes of those fields of a message that are chosen."""
    part = type(message)()
    copy_fields(message, part, is_chosen)
    return part.SerializeToString(deterministic=True)
