"""Each thing has one name on the command line of all tools; older spellings stay. Oracle: the table below."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.helpers.tool_parsers import REQUIRED, parser_of

ALIASES = [
    ("quantize", "--data", "--calibration-data"),
    ("infer", "--input", "--model"),
    ("infer", "--output", "--output_dir"),
    ("formats", "--input", "--model"),
    ("evaluate", "--labels", "--top1"),
    ("finetune", "--limit", "--data-size"),
]
README = Path(__file__).parents[2] / "docs" / "reference" / "tools.md"


@pytest.mark.parametrize(("tool", "name", "alias"), ALIASES)
def test_an_alias_says_the_same(tool: str, name: str, alias: str) -> None:
    words = [word for word in REQUIRED[tool].split() if word != "--verbose"]
    if name in words:
        del words[words.index(name) : words.index(name) + 2]
    first, second = (vars(parser_of(tool).parse_args([*words, one, "3"])) for one in (name, alias))
    assert first == second


@pytest.mark.parametrize(("tool", "name", "alias"), ALIASES)
def test_both_spellings_are_wrong_usage(
    tool: str, name: str, alias: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = REQUIRED[tool].split()
    words += [alias, "3"] if name in words else [name, "3", f"{alias}=3"]
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"tools.{tool}").main(words)
    assert left.value.code == 2
    wanted = f"tools.{tool}: error: {name} and {alias} are the same option: give one of them (see --help)\n"
    assert capsys.readouterr().err == wanted


@pytest.mark.parametrize(("tool", "name", "alias"), ALIASES)
def test_an_alias_is_in_the_help_and_in_the_readme(tool: str, name: str, alias: str) -> None:
    text = parser_of(tool).format_help()
    assert name in text and alias in text
    assert f"| `tools.{tool}` | `{name}` | `{alias}` |" in README.read_text(encoding="utf-8")


def test_options_have_no_other_spellings() -> None:
    """Oracle: the table above; a pair like --optimize and --no-optimize is two values, not two spellings."""
    found = [
        (tool, *action.option_strings)
        for tool in REQUIRED
        for action in parser_of(tool)._actions
        if len(action.option_strings) > 1 and not action.option_strings[1].startswith(("--no-", "--help"))
    ]
    assert sorted(found) == sorted(ALIASES)


def test_every_tool_that_takes_samples_takes_data() -> None:
    takes = {tool for tool in REQUIRED if any(one.dest == "data" for one in parser_of(tool)._actions)}
    assert takes == set(REQUIRED) - {"check", "evaluate", "formats", "inspect"}
    assert all("--data" in parser_of(tool).format_help() for tool in takes)
