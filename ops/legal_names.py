"""The error for a name that is not in a list of legal ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def refuse_unknown(name: str, legal: Iterable[str], what: str) -> None:
    """Raise ValueError, with a close match and all legal names, unless the name is among them."""
    known = list(legal)
    if name in known:
        return
    close = get_close_matches(name, known, n=1)
    hint = f", did you mean '{close[0]}'?" if close else ","
    raise ValueError(f"{what} '{name}' is unknown{hint} legal are {', '.join(known)}")
