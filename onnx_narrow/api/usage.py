"""Keywords of a call: each of a legal kind, and none without what it goes with."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_narrow.api.keywords import KINDS
from onnx_narrow.api.kinds import Kind, check_kinds
from transforms.files.spelling import UsageError, as_option, spelled

__all__ = [
    *("DATA", "OF_SAMPLES", "Given", "Need", "UsageError"),
    *("check_call", "given_of", "listed", "named", "refuse_own_workers", "refuse_same_file"),
]

Given = Mapping[str, Any]
"""Keywords whose values are not their defaults."""


@dataclass(frozen=True)
class Need:
    """A requirement of a keyword, in words with keywords in braces, and its check on those that are given."""

    words: str
    is_met: Callable[[Any], bool]

    def __str__(self) -> str:
        return spelled(self.words)


DATA = Need("{data}", lambda given: "data" in given)

OF_SAMPLES: Mapping[str, tuple[Need, ...]] = {
    **dict.fromkeys(("limit", "image_size", "mean", "std", "layout", "preprocess", "sequences"), (DATA,)),
    "states": (Need("{sequences}", lambda given: "sequences" in given),),
    "feeds_from": (
        DATA,
        Need("single samples, without {sequences}", lambda given: "sequences" not in given),
    ),
    "feeds": (Need("{feeds_from}", lambda given: "feeds_from" in given),),
}
"""Needs of keywords that say how samples are read."""


def given_of(function: Callable[..., Any], values: Given) -> dict[str, Any]:
    """Return the keywords of a call whose values are not the defaults of the function's signature."""
    defaults = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    return {name: value for name, value in values.items() if not _is_same(value, defaults[name])}


def check_call(
    given: Given, needs: Mapping[str, tuple[Need, ...]], kinds: Mapping[str, Kind] | None = None
) -> None:
    """Raise TypeError or ValueError for a value of another kind, UsageError for a keyword without effect.

    ``kinds``: of keywords that mean something else in this function than in others.
    """
    check_kinds(given, {**KINDS, **(kinds or {})})
    for name in given:
        for need in needs.get(name, ()):
            if not need.is_met(given):
                raise UsageError(f"{named(name, given[name])} requires {need}")


def named(name: str, value: object) -> str:
    """Return a keyword as the caller's door spells it; one that is switched off with its value."""
    return as_option(name, "False" if value is False else "")


def refuse_same_file(given: Given, *names: str) -> None:
    """Raise UsageError for the first two of some keywords that name the same file."""
    taken: dict[str, str] = {}
    for name in names:
        path = given.get(name)
        if not isinstance(path, str | os.PathLike):
            continue
        other = taken.setdefault(os.path.realpath(path), name)
        if other != name:
            pair = spelled(f"{{{other}}} and {{{name}}}")
            raise UsageError(f"{pair} are the same file, '{os.fspath(path)}'")


def refuse_own_workers(given: Given) -> None:
    """Raise UsageError for a number of processes beside a cluster that is there already."""
    if given.get("dask") not in (None, "local") and "jobs" in given:
        words = f"the cluster at '{given['dask']}' has its own workers"
        raise UsageError(spelled("{jobs} requires {dask:local}: ") + words)


def listed(texts: Sequence[str] | str) -> list[str]:
    """Return a list of strings; one alone stands for a list of it."""
    return [texts] if isinstance(texts, str) else list(texts)


def _is_same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
