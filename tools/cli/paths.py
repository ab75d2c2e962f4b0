"""Models that stand alone on a command line: ``quantize m.onnx q.onnx``, and ``-i`` and ``-o``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

from onnx_narrow.options import PLACED

_MANY = -1
_NUMBER = re.compile(r"-[\d.].*")


def with_names(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return arguments in which paths that stand alone have the names of their options before them.

    They come anywhere but after an option that takes several values. What is left over stays as it is, for
    the parser to refuse.
    """
    names = [name for name in PLACED if name in {action.dest for action in parser._actions}]
    written = {action.dest: action.option_strings[0] for action in parser._actions}
    short = {"-i": written[names[0]]} if names else {}
    short |= {"-o": written["output"]} if "output" in names else {}
    named = [short.get(word, word) for word in argv]
    left = [name for name in names if not set(_spellings(parser, name)) & {*map(_name, named)}]
    found, takes = [], 0
    for word in named:
        if word.startswith("-") and len(word) > 1 and not (takes and _NUMBER.fullmatch(word)):
            takes = 0 if "=" in word else _values(parser, word)
        elif takes:
            takes -= takes != _MANY
        elif left:
            found.append(written[left.pop(0)])
        found.append(word)
    return found


def _name(word: str) -> str:
    return word.partition("=")[0]


def _spellings(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    for action in parser._actions:
        if action.dest == name:
            yield from action.option_strings


def _values(parser: argparse.ArgumentParser, word: str) -> int:
    """Return how many values an option takes; unknown ones are refused, whatever follows them."""
    action = parser._option_string_actions.get(word)
    if action is None or action.nargs in ("+", "*"):
        return _MANY
    return 1 if action.nargs is None else int(action.nargs) if isinstance(action.nargs, int) else 1
