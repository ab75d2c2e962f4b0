"""Names of tensors in words, for notes."""

from __future__ import annotations

from collections.abc import Sequence


def listed(names: Sequence[str]) -> str:
    """Return the first names in words, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
