"""Options declared once, with names, help and group, as fields of the class that they are read as."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

USUAL, SEARCH, SAMPLES, RUNNING, OTHER = "options", "search", "samples", "running", "other options"
DETAILS = (SEARCH, SAMPLES, RUNNING, OTHER)
"""Groups that come last in ``--help``, after the usual ones and those that only one tool has."""

_FIRST = ("input", "float_model", "quantized", "output", "config", "data")


@dataclass(frozen=True)
class Option:
    """Names, of which the first is the main one, the group in ``--help``, and what argparse takes."""

    names: tuple[str, ...]
    group: str
    settings: Mapping[str, Any]

    @property
    def is_required(self) -> bool:
        """Whether every run needs it."""
        return bool(self.settings.get("required"))


def declare(spelled: str, help: str, *, group: str = USUAL, **settings: Any) -> Option:
    """Return an option written as in ``--help``: ``--data --old-name DIR``; a flag if it has no value."""
    names = tuple(word for word in spelled.split() if word.startswith("--"))
    value = [word for word in spelled.split() if not word.startswith("--")]
    if value:
        settings["metavar"] = value[0]
    elif not settings.keys() & {"action", "choices"}:
        settings["action"] = "store_true"
    return Option(names, group, {"help": help, **settings})


def option(spelled: str, help: str, *, group: str = USUAL, **settings: Any) -> Any:
    """Return a field of a job, filled by the option that :func:`declare` makes."""
    return field(metadata={"option": declare(spelled, help, group=group, **settings)})


def options_of(kind: type, keys: Mapping[str, Option]) -> dict[str, Option]:
    """Return options by the names of their values: models and data, ``keys``, the job's own, inherited."""
    own = {one.name: one.metadata["option"] for one in fields(kind) if "option" in one.metadata}
    found = {**own, **keys}
    names = (name for cls in kind.__mro__ for name in (*keys, *inspect.get_annotations(cls)))
    return {name: found[name] for name in dict.fromkeys((*_FIRST, *names)) if name in found}


def groups_of(options: Mapping[str, Option]) -> dict[str, dict[str, Option]]:
    """Return the options of each group, in the order of ``--help``."""
    used = dict.fromkeys(one.group for one in options.values())
    titles = [*(title for title in used if title not in DETAILS), *(one for one in DETAILS if one in used)]
    return {title: {name: one for name, one in options.items() if one.group == title} for title in titles}
