"""Numbers that a model's file stores as text: places in external data."""

from __future__ import annotations

from collections.abc import Mapping

from transforms.model.model_error import ModelError

_LONGEST = 40
"""Characters of a number that are read and shown: 64 bits have 20."""


def stored_number(entries: Mapping[str, str], key: str, default: int, what: str) -> int:
    """Return the number of a key, the default without one; ``what``: whose it is.

    Raises ModelError for another text, and for a number that no 64 bits hold.
    """
    if key not in entries:
        return default
    text = entries[key].strip()
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if not text.removeprefix("-").isdecimal():
        raise ModelError(f"{what} has the {key} '{shown}', which is not a number")
    if len(text) > _LONGEST or abs(int(text)) >> 63:
        raise ModelError(f"{what} has the {key} {shown}, a number beyond 64 bits")
    return int(text)
