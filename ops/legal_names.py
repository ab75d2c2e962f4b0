"""Suggest close matches for names that are not in a list of legal ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from heapq import nlargest
from os.path import commonprefix

_MOST = 50
"""Names to compare in full: a model has 100,000, and comparing two long ones takes a millisecond."""

_LONGEST = 200
"""Characters of a name to compare: the time grows with their square."""

_NEAR = 0.6
"""Ratio of difflib from which names are close."""


def nearest(name: str, legal: Iterable[str]) -> str | None:
    """Return the legal name closest to a name, ignoring case, or None if none is close.

    Of many names, only those with the most similar start and end are compared. Shared words do not make
    names close: ``batch_size`` is not close to ``data_size``.
    """
    wanted = str(name).lower().lstrip("-")
    if len(wanted) > _LONGEST:
        return None
    by_spelling = {
        candidate.lower().lstrip("-"): candidate
        for candidate in reversed(list(legal))
        if len(candidate) <= _LONGEST
    }
    likely = nlargest(_MOST, reversed(by_spelling), key=lambda candidate: _shared(wanted, candidate))
    close = get_close_matches(wanted, likely, n=_MOST, cutoff=_NEAR)
    return next((by_spelling[candidate] for candidate in close if _differ_little(wanted, candidate)), None)


def _differ_little(name: str, other: str) -> bool:
    """Return whether the words that only one of two names has are close, as far as they are words."""
    first, second = re.split("[-_]", name), re.split("[-_]", other)
    mine, others = ("".join(one for one in a if one not in b) for a, b in ((first, second), (second, first)))
    if not (mine.isalpha() and others.isalpha()):
        return True
    return SequenceMatcher(None, mine, others).ratio() >= _NEAR


def _shared(name: str, other: str) -> int:
    """Return how many characters two names share at their start and end."""
    pairs = (name, other), (name[::-1], other[::-1])
    return sum(len(commonprefix(pair)) for pair in pairs)  # noqa: RUF071  these are not paths


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """Return the end of an error about a name: ``, did you mean 'A8W8'?``, or "" if none is close."""
    near = nearest(name, legal)
    return f", did you mean '{near}'?" if near is not None else ""


def unknown(name: str, legal: Iterable[str], what: str) -> ValueError:
    """Return the error about an unknown name, with a close match and all legal names."""
    known = list(legal)
    return ValueError(
        f"{what} '{name}' is unknown{did_you_mean(name, known) or ','} legal are {', '.join(known)}"
    )


def refuse_unknown(name: str, legal: Iterable[str], what: str) -> None:
    """Raise ValueError, with a close match and all legal names, unless the name is among them."""
    known = list(legal)
    if name not in known:
        raise unknown(name, known, what)
