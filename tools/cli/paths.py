"""Positional models on a command line: ``quantize m.onnx q.onnx``, and ``-i`` and ``-o``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from onnx_narrow.options import PLACED

_MANY = -1
_NUMBER = re.compile(r"-[\d.].*")


def with_names(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return arguments in which positional paths are preceded by the names of their options.

    They may be anywhere except after an option that takes several values. Surplus ones are left for the
    parser to refuse.
    """
    spellings = {action.dest: action.option_strings for action in parser._actions}
    names = [name for name in PLACED if name in spellings]
    short = {"-i": spellings[names[0]][0]} if names else {}
    short |= {"-o": spellings["output"][0]} if "output" in names else {}
    words = [short.get(word, word) for word in argv]
    used_options = {word.partition("=")[0] for word in words}
    unfilled = [name for name in names if used_options.isdisjoint(spellings[name])]
    arguments, values_left = [], 0
    for word in words:
        if word.startswith("-") and len(word) > 1 and not (values_left and _NUMBER.fullmatch(word)):
            values_left = 0 if "=" in word else _values(parser, word)
        elif values_left:
            values_left -= values_left != _MANY
        elif unfilled:
            arguments.append(spellings[unfilled.pop(0)][0])
        arguments.append(word)
    return arguments


def _values(parser: argparse.ArgumentParser, word: str) -> int:
    """Return how many values an option takes; unknown ones are refused, whatever follows them."""
    action = parser._option_string_actions.get(word)
    if action is None or action.nargs in ("+", "*"):
        return _MANY
    return action.nargs if isinstance(action.nargs, int) else 1
