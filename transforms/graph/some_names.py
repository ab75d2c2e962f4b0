"""Names and counts of tensors or nodes in a line of text."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 3


def counted(count: int, what: str) -> str:
    """Return a count with its noun: ``1 node``, ``2 nodes``."""
    return f"{count} {what if count == 1 else {'bias': 'biases'}.get(what, what + 's')}"


def some_names(names: Sequence[str]) -> str:
    """Return the first names in quotes, and the number of further ones."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
