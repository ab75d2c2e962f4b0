"""Copying some of the fields of a protobuf message."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def copy_fields(source: Message, target: Message, is_chosen: Callable[[FieldDescriptor], bool]) -> None:
    """Add those fields of a message that are set and chosen to an empty one of its type."""
    for field, value in source.ListFields():
        if not is_chosen(field):
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
