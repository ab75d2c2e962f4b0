"""What a tool says of itself. Oracle: its own parser, and the limits below."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.tool_parsers import REQUIRED, parser_of
from tools import __main__ as listing
from tools.cli.command_line import purpose_of

COLUMNS, LINES = 100, 60
"""Of a screen and a half: before the details."""


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def _beginning(tool: str) -> list[str]:
    text = parser_of(tool).format_help()
    assert "\ndetails:\n" in text
    return text.partition("\ndetails:\n")[0].splitlines()


def _commands(tool: str) -> list[str]:
    text = "\n".join(_beginning(tool)).replace("\\\n", "")
    return re.findall(rf"^  (python -m tools\.{tool}.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("tool", REQUIRED)
def test_a_screen_and_a_half_comes_before_the_details(tool: str) -> None:
    lines = _beginning(tool)
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS
    assert lines[0].startswith(f"usage: python -m tools.{tool}") and lines[0].endswith("[options]")
    assert lines[2] == purpose_of(importlib.import_module(f"tools.{tool}").__doc__)
    assert lines[4] == "usual commands:"


@pytest.mark.parametrize("tool", REQUIRED)
def test_the_three_usual_commands_are_right(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = _commands(tool)
    assert len(commands) == 3 == len(set(commands))
    for command in commands:
        words = shlex.split(command)[3:]
        try:
            assert importlib.import_module(f"tools.{tool}").main(words) in (0, 1)  # there is no model
        except SystemExit as left:  # none of these options is in vain
            pytest.fail(f"{command}: {left.code}, {capsys.readouterr().err}")


@pytest.mark.parametrize("tool", REQUIRED)
def test_every_option_has_a_group_and_words(tool: str) -> None:
    parser = parser_of(tool)
    grouped = [action for group in parser._action_groups[2:] for action in group._group_actions]
    assert sorted(action.dest for action in grouped) == sorted(action.dest for action in parser._actions)
    assert all(action.help for action in grouped)
    text = parser.format_help()
    for action in parser._actions:
        assert all(re.search(rf"^  .*{re.escape(name)}\b", text, re.M) for name in action.option_strings)
    titles = [group.title for group in parser._action_groups[2:]]
    assert titles[0] == "options" and titles[-1] == "other options" and "details" in titles


def test_the_tools_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert listing.main([]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[2:])
    assert listed == {tool: purpose_of(importlib.import_module(f"tools.{tool}").__doc__) for tool in REQUIRED}
    assert all(len(words.split()) > 3 for words in listed.values())


def test_the_list_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert listing.main(["quantize"]) == 2
    errors = capsys.readouterr().err
    assert errors == "tools: error: 'quantize' has no meaning here: python -m tools.NAME runs a tool\n"


@pytest.mark.parametrize("package", ["ops", "transforms", "tools"])
def test_packages_say_that_they_are_typed(package: str) -> None:
    """PEP 561."""
    module = importlib.import_module(package)
    assert module.__file__ is not None and (Path(module.__file__).parent / "py.typed").is_file()
