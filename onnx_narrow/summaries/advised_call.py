"""A recommended call: as a command, or as the same call in Python."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx_narrow.options import PLACED, options
from onnx_narrow.options.option import Keywords, Option

_JOBS = {"convert_fp32_to_bf16": "convert_bf16", "convert_fp16_to_bf16": "convert_bf16"}
"""Functions of tools whose names differ."""


@dataclass(frozen=True)
class Variable:
    """A value by the name of a variable."""

    name: str

    def __repr__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True)
class Door:
    """How calls are written: ``python`` or as commands.

    ``variables``: names of Python variables for values in memory, by their placeholders.
    """

    python: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    def call(self, tool: str, keywords: Keywords) -> str:
        """Return a call of a tool with keywords."""
        job = _JOBS.get(tool, tool)
        if not self.python:
            return f"python -m tools.{tool} {shlex.join(as_words(job, keywords))}"
        placed = [repr(self._value(value)) for name, value in keywords.items() if name in PLACED]
        return f"onnx_narrow.{job}({', '.join([*placed, *self._keywords(keywords)])})"

    def options(self, keywords: Keywords) -> str:
        """Return options alone, to be added to a call of ``quantize``."""
        if not self.python:
            return f"add to the command that made it: {shlex.join(as_words('quantize', keywords))}"
        return f"add to the call that made it: {', '.join(self._keywords(keywords))}"

    def _keywords(self, keywords: Keywords) -> Iterator[str]:
        return (f"{name}={self._value(value)!r}" for name, value in keywords.items() if name not in PLACED)

    def _value(self, value: Any) -> object:
        if not isinstance(value, str | os.PathLike):
            return value
        text = os.fspath(value)
        return Variable(self.variables[text]) if text in self.variables else text


def as_words(job: str, keywords: Keywords) -> list[str]:
    """Return the keywords of a function as words of its command line."""
    rows = options(job)
    return [word for name, value in keywords.items() for word in _words(rows[name], value)]


def _words(row: Option, value: Any) -> Iterator[str]:
    option = row.names[0]
    if isinstance(value, bool):
        yield option if value or option.startswith("--no-") else f"--no-{option.removeprefix('--')}"
    elif isinstance(value, Mapping):
        sign = ":" if row.read == "shape" else "="
        for key, item in value.items():
            yield from (option, f"{key}{sign}{item if isinstance(item, str) else _joined(item)}")
    elif isinstance(value, list):
        for item in value:
            yield from (option, item)
    else:
        sign = "x" if row.read == "size" else ","
        yield from (option, _joined(value, sign) if isinstance(value, tuple) else str(value))


def _joined(numbers: Any, sign: str = ",") -> str:
    return sign.join(f"{number:g}" for number in numbers)
