"""A call that is advised: as a command, or as the same call in Python."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_PLACES = ("--input", "--float", "--quantized", "--output")
"""Options that are given by their places in Python."""

_LISTS = {"--exclude-node": "exclude_nodes", "--set": "assignments"}
_MAPPINGS = {"--state": ("states", "="), "--feed": ("feeds", "="), "--input-shape": ("input_shapes", ":")}
_BF16 = "convert_bf16"
_FUNCTIONS = {"convert_fp32_to_bf16": _BF16, "convert_fp16_to_bf16": _BF16}


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

    ``variables``: what values in memory are called in Python, by the words that stand for them.
    """

    python: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    def call(self, tool: str, words: Sequence[str]) -> str:
        """Return a call of a tool with options."""
        if not self.python:
            return f"python -m tools.{tool} {shlex.join(words)}"
        function = _FUNCTIONS.get(tool, tool)
        placed = [repr(self._value(value)) for option, value in _pairs(words) if option in _PLACES]
        return f"onnx_narrow.{function}({', '.join([*placed, *self._keywords(words, function)])})"

    def options(self, words: Sequence[str]) -> str:
        """Return options alone, to be added to a call."""
        if not self.python:
            return f"add to the command that made it: {shlex.join(words)}"
        return f"add to the call that made it: {', '.join(self._keywords(words, ''))}"

    def _keywords(self, words: Sequence[str], function: str) -> list[str]:
        found: dict[str, Any] = {}
        for option, text in _pairs(words):
            if option not in _PLACES:
                self._add(found, option, text, function)
        return [f"{name}={value!r}" for name, value in found.items()]

    def _add(self, found: dict[str, Any], option: str, text: str, function: str) -> None:
        if option in _LISTS:
            name = "exclude_node" if function == _BF16 else _LISTS[option]
            found.setdefault(name, []).append(text)
        elif option in _MAPPINGS:
            name, sign = _MAPPINGS[option]
            key, _, value = text.rpartition(sign)
            sizes = tuple(map(int, value.split(","))) if name == "input_shapes" else value
            found.setdefault(name, {})[key] = sizes
        elif not text:
            is_off = option.startswith("--no-")
            found[_keyword(option.removeprefix("--no-"))] = not is_off
        else:
            found[_keyword(option)] = self._value(text)

    def _value(self, text: str) -> object:
        if text in self.variables:
            return Variable(self.variables[text])
        for sign in (",", "x"):
            try:
                numbers = [float(one) if "." in one else int(one) for one in text.split(sign)]
            except ValueError:
                continue
            return numbers[0] if len(numbers) == 1 else tuple(numbers)
        return text


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option with its value, empty for a flag."""
    for place, word in enumerate(words):
        if word.startswith("--"):
            after = words[place + 1] if place + 1 < len(words) else "--"
            yield word, "" if after.startswith("--") else after


def _keyword(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
