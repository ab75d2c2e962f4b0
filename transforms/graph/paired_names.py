"""Decide by names whether an input and an output are one state, before and after a step."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

_DIRECTIONS = frozenset(
    {"in", "out", "input", "output", "old", "new", "prev", "previous", "next", "curr", "cur", "current"}
    | {"init", "initial", "first", "last", "final", "updated"}
)
_CACHES = frozenset({"past", "present"})
_STEPS = frozenset({"0", "n", "t"})

_KEY_VALUES = re.compile(r"(past|present)_key_values?")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LETTER_OF_STEP = re.compile(r"[a-z][nt]")


class Likeness(IntEnum):
    """Similarity of two names, from none to a difference only in direction.

    ``PREFIX``: the words of one start the other. ``STEP``: they differ in direction or in the step, as
    ``h0`` and ``hn``. ``DIRECTION``: ``h_in`` and ``h_out``, ``past.0.key`` and ``present.0.key``.
    """

    NONE = 0
    PREFIX = 1
    STEP = 2
    DIRECTION = 3


def likeness(fed: str, back: str) -> Likeness:
    """Return the similarity of the names of an input and an output."""
    words = _words(fed), _words(back)
    if _stem(words[0]) == _stem(words[1]):
        return Likeness.DIRECTION
    if _without_step(words[0]) == _without_step(words[1]) or _counts_up(fed.lower(), back.lower()):
        return Likeness.STEP
    short, long = sorted(words, key=len)
    return Likeness.PREFIX if long[: len(short)] == short else Likeness.NONE


def _counts_up(fed: str, back: str) -> bool:
    """Return whether names differ in their last letter, as ``lens0`` and ``lensn``."""
    return fed.endswith("0") and back[:-1] == fed[:-1] and back[-1:] in _STEPS


def belong_together(fed: str, back: str) -> bool:
    """Return whether two names are alike at all."""
    return likeness(fed, back) > Likeness.NONE


@lru_cache(maxsize=1024)
def _words(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a name in lower case, also of ``hN``, ``h0`` and ``hn``."""
    words: list[str] = []
    for word in _WORDS.findall(_KEY_VALUES.sub(r"\1", name)):
        small = word.lower()
        words += small if _LETTER_OF_STEP.fullmatch(small) and small not in _DIRECTIONS else [small]
    return tuple(words)


@lru_cache(maxsize=1024)
def _stem(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words other than directions, or all words if all are directions."""
    rest = tuple(word for word in words if word not in _DIRECTIONS and word not in _CACHES)
    return rest or (("past",) if _CACHES.intersection(words) else words)


def _without_step(words: tuple[str, ...]) -> tuple[str, ...]:
    stem = _stem(words)
    return tuple(word for word in stem if word not in _STEPS) or stem
