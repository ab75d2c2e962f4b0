"""Models that stand alone on a command line: ``quantize m.onnx q.onnx``, and ``-i`` and ``-o``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from onnx_narrow.options import PLACED

_MANY = -1
_NUMBER = re.compile(r"-[\d.].*")


def with_names(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return arguments in which paths that stand alone have the names of their options before them.

    They come anywhere but after an option that takes several values. What is left over stays as it is, for
    the parser to refuse.
    """
    spellings = {action.dest: action.option_strings for action in parser._actions}
    names = [name for name in PLACED if name in spellings]
    short = {"-i": spellings[names[0]][0]} if names else {}
    short |= {"-o": spellings["output"][0]} if "output" in names else {}
    named = [short.get(word, word) for word in argv]
    given = {word.partition("=")[0] for word in named}
    left = [name for name in names if given.isdisjoint(spellings[name])]
    found, takes = [], 0
    for word in named:
        if word.startswith("-") and len(word) > 1 and not (takes and _NUMBER.fullmatch(word)):
            takes = 0 if "=" in word else _values(parser, word)
        elif takes:
            takes -= takes != _MANY
        elif left:
            found.append(spellings[left.pop(0)][0])
        found.append(word)
    return found


def _values(parser: argparse.ArgumentParser, word: str) -> int:
    """Return how many values an option takes; unknown ones are refused, whatever follows them."""
    action = parser._option_string_actions.get(word)
    if action is None or action.nargs in ("+", "*"):
        return _MANY
    return action.nargs if isinstance(action.nargs, int) else 1
