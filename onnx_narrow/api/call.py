"""From the keywords of a Python call to the job of a tool, and what it said."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ops.legal_names import did_you_mean
from tools.cli.command_line import Command
from tools.cli.job_options import Options
from tools.cli.progress import Watcher, watched
from tools.cli.said import Said, collected

J = TypeVar("J", bound=Options)
R = TypeVar("R")


def call(
    command: Command[J],
    work: Callable[[J], R],
    options: Mapping[str, Any],
    shows: Watcher | None = None,
) -> tuple[R, Said]:
    """Do what a tool does with options by name, and return its result and what it said.

    Options that are None are left out. Raises TypeError for one that the tool does not have, ValueError for
    values that are wrong usage on the command line, and whatever the work raises.
    """
    job = command.job(list(_arguments(command, options)))
    with collected() as said, watched(shows):
        return work(job), said


def _arguments(command: Command[J], options: Mapping[str, Any]) -> Iterator[str]:
    actions = {action.dest: action for action in command.parser._actions}
    for name, value in options.items():
        if value is None:
            continue
        if name not in actions:
            raise TypeError(f"there is no option '{name}'{did_you_mean(name, actions)}")
        yield from _words(actions[name], name, value)


def _words(action: argparse.Action, name: str, value: Any) -> Iterator[str]:
    spelled = action.option_strings
    if isinstance(action, argparse.BooleanOptionalAction):
        yield spelled[0] if value else next(one for one in spelled if one.startswith("--no-"))
    elif action.nargs == 0:
        if value == action.const:
            yield spelled[0]
    elif isinstance(action, argparse._AppendAction):
        for text in _texts(name, value):
            yield f"{spelled[0]}={text}"
    else:
        yield f"{spelled[0]}={_text(name, value)}"


_WORDS: Mapping[str, Callable[[Any], str]] = {
    "assignments": lambda value: _toml(value),
    "input_shapes": lambda shape: ",".join(map(str, shape)),
}
"""Values of mappings whose text is not theirs."""


def _texts(name: str, value: Any) -> Iterator[str]:
    """Yield the values of an option that may be given several times."""
    if isinstance(value, str | os.PathLike):
        yield _text(name, value)
    elif isinstance(value, Mapping):
        pair = "{}:{}" if name == "input_shapes" else "{}={}"
        words = _WORDS.get(name, str)
        yield from (pair.format(key, words(one)) for key, one in value.items())
    else:
        yield from (_text(name, one) for one in value)


def _text(name: str, value: Any) -> str:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, tuple | list):
        return ("x" if name == "image_size" else ",").join(map(str, value))
    return str(value)


def _toml(value: Any) -> str:
    """Return a value of a key of a scheme as TOML; a table as an inline one."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(os.fspath(value) if isinstance(value, os.PathLike) else value, ensure_ascii=False)
