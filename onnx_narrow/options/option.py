"""An option: its row in the table, and its requirements."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onnx_narrow.options.kinds import REQUIRED, Kind
from transforms.files.spelling import spelled

USUAL, SEARCH, SAMPLES, RUNNING, OTHER = "options", "search", "samples", "running", "other options"
DETAILS = (SEARCH, SAMPLES, RUNNING, OTHER)
"""Groups that come last in ``--help``, after the usual ones and those that only one tool has."""

_NAMED = re.compile(r"\{(\w+)(?::([^}]*))?\}")

_NOT = re.compile(r"\b(?:without|no)\b")

Keywords = Mapping[str, Any]
"""Keywords of a call whose values differ from their defaults."""


class Need:
    """A requirement of an option, in words, and whether the keywords of a call meet it.

    Options in braces are alternatives, of which one has to be given, ``{option:a or b}`` with one of these
    values; those after "without" or "no" may not be given. Any other rule has a function of its own.
    """

    def __init__(self, words: str, is_met: Callable[[Any], bool] | None = None) -> None:
        """Take the words, and the rule if it does not follow from them."""
        self.words, self.is_met = words, is_met or self._is_met

    def __str__(self) -> str:
        return spelled(self.words)

    def _is_met(self, keywords: Any) -> bool:
        required, *refused = _NOT.split(self.words, maxsplit=1)
        if any(name in keywords for name, _ in _NAMED.findall("".join(refused))):
            return False
        are_given = [
            name in keywords and _is_legal(keywords[name], legal) for name, legal in _NAMED.findall(required)
        ]
        return any(are_given) or not are_given


def _is_legal(value: object, legal: str) -> bool:
    return not legal or value in re.split(", | or ", legal)


Needs = tuple[Need, ...]


@dataclass(frozen=True)
class Option:
    """A row of the table.

    ``jobs``: those that have it, ``quantize`` as keyword and as option, ``quantize()`` as keyword alone,
    ``--quantize`` as option alone. ``written``: its names on the command line, the main one first, and the
    placeholder of its value; from its name and its choices if empty. ``needs``: its requirements, for all
    jobs or by job, ``*`` for others. ``read``: the reader of its value on the command line, where its kind
    has none. ``takes``: "+" for several values, "extend" for such lists joined, "both" for a flag with a
    ``--no-`` form. ``required``: whether each command needs it, where calls differ.
    """

    name: str
    kind: Kind
    jobs: str
    written: str
    group: str
    needs: Needs | Mapping[str, Needs]
    help: str
    read: str = ""
    takes: str = ""
    required: bool | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Its names on the command line, the main one first."""
        written = [word for word in self.written.split() if word.startswith("--")]
        return tuple(written) or (f"--{self.name.replace('_', '-')}",)

    @property
    def is_required(self) -> bool:
        """Whether every command needs it."""
        return self.kind.default is REQUIRED if self.required is None else self.required

    def needs_in(self, job: str) -> Needs:
        """Return its requirements in a job."""
        if isinstance(self.needs, tuple):
            return self.needs
        return self.needs.get(job, self.needs.get("*", ()))
