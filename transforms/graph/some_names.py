"""Names of tensors or nodes in a line of a summary."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 3


def some_names(names: Sequence[str]) -> str:
    """Return the first names in quotes, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
