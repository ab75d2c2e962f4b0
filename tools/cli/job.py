"""The options on a command line, as keywords of the function that it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx_narrow.options import keywords
from tools.cli.parser import Parser

_MAPPINGS = {"feeds", "input_shapes", "states"}
"""Options that take a name and its value."""


@dataclass(frozen=True)
class Job:
    """The options on the command line of a job: their values, and how they are written, by keyword."""

    name: str
    values: Mapping[str, Any]
    written: Mapping[str, str]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an option, or ``default`` if it is not given."""
        return self.values.get(name, default)

    @property
    def verbose(self) -> bool:
        """Whether to print details."""
        return bool(self.get("verbose", False))

    def with_values(self, **values: object) -> Job:
        """Return the job with changed values; None removes a value."""
        changed = {**self.values, **values}
        return replace(self, values={name: value for name, value in changed.items() if value is not None})

    def keywords(self) -> dict[str, Any]:
        """Return the options that the function of the job takes; ValueError for two shapes of an input."""
        values = {name: value for name, value in self.values.items() if name in keywords(self.name)}
        for name in _MAPPINGS & values.keys():
            values[name] = _by_name(values[name], self.written[name])
        return values


def parse(parser: Parser, argv: Sequence[str] | None) -> Job:
    """Return the options on the command line; leaves through argparse with 2 after a usage error."""
    values = vars(parser.parse_args(argv))
    actions = {action.dest: action for action in parser._actions}
    written = {
        name: actions[name].option_strings[-1 if value is False else 0] for name, value in values.items()
    }
    return Job(parser.job, values, written)


def _by_name(pairs: Sequence[tuple[str, Any]], option: str) -> dict[str, Any]:
    """Return pairs of name and value as a mapping; ValueError for a name with two values."""
    mapping = dict(pairs)
    for name, value in pairs:
        if mapping[name] != value:
            noun = "sizes" if option == "--input-shape" else "values"
            raise ValueError(f"{option} '{name}' is given twice, with different {noun}")
    return mapping
