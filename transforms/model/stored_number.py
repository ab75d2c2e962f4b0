"""Numbers stored as text in a model's file: places in external data."""

from __future__ import annotations

from collections.abc import Mapping

from transforms.model.model_error import ModelError

_LONGEST = 40
"""Characters of a number that are read and shown: 64 bits have 20."""


def stored_number(entries: Mapping[str, str], key: str, default: int, owner: str) -> int:
    """Return the number of a key, or the default; ``owner``: whose number it is, for errors.

    Raises ModelError for text that is not a number, and for numbers beyond 64 bits.
    """
    if key not in entries:
        return default
    text = entries[key].strip()
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if not text.removeprefix("-").isdecimal():
        raise ModelError(f"{owner} has the {key} '{shown}', which is not a number")
    if len(text) > _LONGEST or abs(int(text)) >> 63:
        raise ModelError(f"{owner} has the {key} {shown}, a number beyond 64 bits")
    return int(text)
