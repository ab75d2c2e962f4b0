"""Near names: what a name that is not in a list of legal ones was probably meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from heapq import nlargest
from os.path import commonprefix

_MOST = 50
"""Names that are compared in full: a model has 100,000, and two long ones take a millisecond."""

_LONGEST = 200
"""Characters of a name that is compared with others: the time grows with the square."""

_NEAR = 0.6
"""Ratio of difflib from which names are near."""


def nearest(name: str, legal: Iterable[str]) -> str | None:
    """Return the legal name that is nearest to a name, whatever its case, or None if none is near.

    Of many names, those are compared that begin and end most like it. Words that two names share do not make
    them near: ``batch_size`` is not near ``data_size``.
    """
    wanted = str(name).lower().lstrip("-")
    if len(wanted) > _LONGEST:
        return None
    known = {one.lower().lstrip("-"): one for one in reversed(list(legal)) if len(one) <= _LONGEST}
    likely = nlargest(_MOST, reversed(known), key=lambda one: _shared(wanted, one))
    close = get_close_matches(wanted, likely, n=_MOST, cutoff=_NEAR)
    return next((known[one] for one in close if _differ_little(wanted, one)), None)


def _differ_little(name: str, other: str) -> bool:
    """Return whether the words are near that only one of two names has, as far as they are words."""
    first, second = re.split("[-_]", name), re.split("[-_]", other)
    mine, others = ("".join(one for one in a if one not in b) for a, b in ((first, second), (second, first)))
    if not (mine.isalpha() and others.isalpha()):
        return True
    return SequenceMatcher(None, mine, others).ratio() >= _NEAR


def _shared(name: str, other: str) -> int:
    """Return how many characters two names share at their beginning and at their end."""
    pairs = (name, other), (name[::-1], other[::-1])
    return sum(len(commonprefix(pair)) for pair in pairs)  # noqa: RUF071  these are not paths


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """Return the end of an error about a name: ``, did you mean 'A8W8'?``, or nothing if none is near."""
    near = nearest(name, legal)
    return f", did you mean '{near}'?" if near is not None else ""


def unknown(name: str, legal: Iterable[str], what: str) -> ValueError:
    """Return the error about an unknown name, with a near legal name and all legal names."""
    known = list(legal)
    return ValueError(
        f"{what} '{name}' is unknown{did_you_mean(name, known) or ','} legal are {', '.join(known)}"
    )


def refuse_unknown(name: str, legal: Iterable[str], what: str) -> None:
    """Raise ValueError, with a close match and all legal names, unless the name is among them."""
    known = list(legal)
    if name not in known:
        raise unknown(name, known, what)
