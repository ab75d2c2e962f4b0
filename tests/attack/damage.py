"""Damage to the content of files: bytes, fields of protobuf messages, words of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message

Random = np.random.Generator

_WHOLE = (0, 1, -1, 2, 7, 127, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), (1 << 62), (1 << 63) - 1, -(1 << 63))
_REAL = (0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
_WORDS = ("", "x", "y", "a\nb", "\x1b[2J", "../../etc/passwd", "/dev/zero", "a\0b", "é" * 40, "n" * 70_000)
_TOKENS = (
    *("", "0", "-1", "1e999", "NaN", "null", "true", "[]", "{}", '""', "[[[[", "}", '"', "\0", "\ufeff"),
    *("9" * 400, "0x" + "f" * 400, "[" * 3000, '"\\ud800"', "1979-05-27T07:32:00Z", "-Infinity", "'''"),
)


def damage_bytes(content: bytes, random: Random) -> bytes:
    """Return the content with one to four stretches flipped, inserted, deleted, repeated or cut off."""
    data = bytearray(content)
    for _ in range(int(random.integers(1, 5))):
        size = len(data)
        start = int(random.integers(0, size + 1))
        length = int(min(random.choice([1, 1, 2, 4, 8, 64, 512]), size - start))
        kind = int(random.integers(0, 7))
        if kind == 0 and size:
            data[start - 1] ^= 1 << int(random.integers(0, 8))
        elif kind == 1:
            data[start : start + length] = random.bytes(length)
        elif kind == 2:
            data[start:start] = random.bytes(int(random.choice([1, 2, 5, 100])))
        elif kind == 3:
            del data[start : start + length]
        elif kind == 4:
            data[start:start] = data[start : start + length] * int(random.integers(1, 4))
        elif kind == 5:
            data[start : start + length] = bytes([int(random.choice([0, 255]))]) * length
        elif random.random() < 0.3:
            del data[start:]
    return bytes(data)


def damage_text(content: bytes, random: Random) -> bytes:
    """Return the text with one to three of its words replaced, doubled or taken away."""
    text = content.decode("utf-8", errors="replace")
    for _ in range(int(random.integers(1, 4))):
        marks = [i for i, c in enumerate(text) if c in ' ,:=[]{}"\n.'] or [0]
        at = int(random.integers(0, len(marks)))
        start, end = marks[at], marks[min(at + 1, len(marks) - 1)]
        token = _TOKENS[int(random.integers(0, len(_TOKENS)))]
        kind = int(random.integers(0, 3))
        middle = token if kind == 0 else text[start:end] * (2 if kind == 1 else 0)
        text = text[:start] + middle + text[end:]
    return text.encode("utf-8", errors="surrogatepass")


def damage_model(content: bytes, random: Random) -> bytes:
    """Return the model with one to three fields of its messages set, cleared, repeated or swapped."""
    model = onnx.ModelProto()
    model.ParseFromString(content)
    for _ in range(int(random.integers(1, 4))):
        places = list(_fields(model))
        message, field = places[int(random.integers(0, len(places)))]
        try:
            _damage_field(message, field, random)
        except (ValueError, TypeError):  # a value that the field cannot hold
            continue
    return model.SerializeToString()


def _fields(message: Message) -> Iterator[tuple[Message, Any]]:
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from _fields(inner)


def _damage_field(message: Message, field: Any, random: Random) -> None:
    value = getattr(message, field.name)
    kind = int(random.integers(0, 6))
    if kind == 0:
        message.ClearField(field.name)
    elif field.is_repeated:
        at, other = (int(i) for i in random.integers(0, len(value), 2))
        if kind == 1:
            del value[at]
        elif kind in (2, 3) and field.message_type is not None:
            value.add().CopyFrom(value[at])
        elif kind == 4 and field.message_type is not None:
            value[at].CopyFrom(value[other])
        elif field.message_type is None:
            value[at] = _other(value[at], random) if kind < 5 else value[other]
    elif field.message_type is None:
        setattr(message, field.name, _other(value, random))


def _other(value: Any, random: Random) -> Any:
    if isinstance(value, bool | int):
        return int(value) + int(random.integers(-2, 3)) if random.random() < 0.3 else _pick(_WHOLE, random)
    if isinstance(value, float):
        return _pick(_REAL, random)
    if isinstance(value, bytes):
        return damage_bytes(value, random)
    return _pick(_WORDS, random) if random.random() < 0.8 else value + "x"


def _pick(values: tuple[Any, ...], random: Random) -> Any:
    return values[int(random.integers(0, len(values)))]
