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
"""Of a screen: what ``--help`` prints."""


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def _printed(tool: str, option: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        parser_of(tool).parse_args([option])
    assert left.value.code in (0, None)
    return capsys.readouterr().out


def _commands(tool: str) -> list[str]:
    text = parser_of(tool).format_short_help().replace("\\\n", "")
    return re.findall(rf"^  (python -m tools\.{tool}.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("tool", REQUIRED)
def test_help_fits_a_screen(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(tool, "--help", capsys)
    assert text == _printed(tool, "-h", capsys) == parser_of(tool).format_short_help()
    lines = text.splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS
    assert lines[0].startswith(f"usage: python -m tools.{tool}") and lines[0].endswith("[options]")
    assert lines[2] == purpose_of(importlib.import_module(f"tools.{tool}").__doc__)
    assert lines[4] == "usual commands:"
    assert "\n  --help-all" in text


USUAL = {
    "auto_mixed_precision": "--config --target --sqnr-target --top1-target --set",
    "convert_fp32_to_bf16": "--format --exclude-node --min-sqnr",
    "finetune": "--limit --mean --std",
    "infer": "--time",
    "inspect": "--tensors --layers --against",
    "quantize": "--config --target --set --exclude-node --exclude-op --storage --limit --mean --std "
    "--preprocess --min-sqnr --per-channel",
}
RARE = "--accuracy-level --kv-cache --embeddings"


@pytest.mark.parametrize("tool", REQUIRED)
def test_help_has_the_options_that_most_people_need(tool: str) -> None:
    parser = parser_of(tool)
    text = parser.format_short_help().partition("\noptions:\n")[2]
    needed = {action.option_strings[0] for action in parser._actions if action.required}
    for name in needed | {*USUAL.get(tool, "").split()}:
        assert re.search(rf"^  {name}\b", text, re.MULTILINE), name


def test_rare_options_are_in_the_long_help() -> None:
    parser = parser_of("quantize")
    for name in RARE.split():
        assert name not in parser.format_short_help() and f"  {name}" in parser.format_help()


@pytest.mark.parametrize("tool", REQUIRED)
def test_help_all_has_more_and_ends_with_the_details(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, short = _printed(tool, "--help-all", capsys), parser_of(tool).format_short_help()
    assert text.startswith(short.partition("\n\noptions:")[0])
    options = re.compile(r"^  (?:-h, )?(--[\w-]+)", re.MULTILINE)
    assert {*options.findall(short)} < {*options.findall(text)}


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
    assert titles[0] == "options" and titles[-1] == "other options"


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
