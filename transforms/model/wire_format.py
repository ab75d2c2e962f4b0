"""The bytes of a model in pieces: large weights are not in the message, but follow one by one.

A protobuf message is the list of its fields, each with a tag, and the fields of messages inside also with
their length. What protobuf itself would write, fields in the order of their numbers, is written here without
ever holding the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx
from google.protobuf.message import Message

from transforms.graph.lazy_values import Weight, stored, stored_bytes
from transforms.model.wire_scan import opening

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER

Piece = bytes | memoryview


def pieces(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> Iterator[Piece]:
    """Yield the bytes of a light model whose initializers have the data of the weights of their name.

    They are those that ``SerializeToString(deterministic=True)`` returns for the filled model.
    """
    graph = light.graph
    held = [weights.get(tensor.name) for tensor in graph.initializer]
    sizes = [_tensor_bytes(tensor, weight) for tensor, weight in zip(graph.initializer, held, strict=True)]
    head, tail = (_fields(graph, chosen) for chosen in (_before(_INITIALIZER), _after(_INITIALIZER)))
    inner = sum(len(opening(_INITIALIZER, size)) + size for size in sizes)
    yield _fields(light, _before(_GRAPH))
    yield opening(_GRAPH, len(head) + inner + len(tail))
    yield head
    for tensor, weight, size in zip(graph.initializer, held, sizes, strict=True):
        yield opening(_INITIALIZER, size)
        yield from _tensor(tensor, weight)
    yield tail
    yield _fields(light, _after(_GRAPH))


def _tensor(tensor: onnx.TensorProto, weight: Weight | None) -> Iterator[Piece]:
    if weight is None:
        yield tensor.SerializeToString(deterministic=True)
        return
    yield _fields(tensor, _before(_RAW_DATA))
    yield opening(_RAW_DATA, stored_bytes(weight))
    yield stored(weight).data
    yield _fields(tensor, _after(_RAW_DATA))


def _tensor_bytes(tensor: onnx.TensorProto, weight: Weight | None) -> int:
    if weight is None:
        return tensor.ByteSize()
    length = stored_bytes(weight)
    return tensor.ByteSize() + len(opening(_RAW_DATA, length)) + length


def _before(number: int) -> Callable[[int], bool]:
    return lambda other: other < number


def _after(number: int) -> Callable[[int], bool]:
    return lambda other: other > number


def _fields(message: Message, is_chosen: Callable[[int], bool]) -> bytes:
    """Return the bytes of those fields of a message whose numbers are chosen."""
    part = type(message)()
    for descriptor, value in message.ListFields():
        if not is_chosen(descriptor.number):
            continue
        if hasattr(value, "extend"):
            getattr(part, descriptor.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(part, descriptor.name).CopyFrom(value)
        else:
            setattr(part, descriptor.name, value)
    return part.SerializeToString(deterministic=True)
