"""Numbers on the command line. Oracle: ranges by hand, and those of keys that options replace."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pytest

from onnx_narrow.options.kinds import number, whole
from tests.helpers.tool_parsers import REQUIRED, parser_of
from tools import auto_mixed_precision
from tools.cli.option_values import bytes_of, file_size, numbers, reading, size
from transforms.scheme.mixing_rule import _RANGES

NUMERIC = [
    (tool, action.option_strings[0])
    for tool in REQUIRED
    for action in parser_of(tool)._actions
    if action.type not in (None, Path, str.upper)
]


@pytest.mark.parametrize(("tool", "option"), NUMERIC)
def test_what_is_no_number_is_refused_in_a_line_that_names_the_option(
    tool: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("nan", "inf", "-inf", "1e999", "much", "", "0y10", "9" * 5000):
        shown = text or "''"
        with pytest.raises(SystemExit) as left:
            parser_of(tool).parse_args([f"{option}={text}"])
        errors = capsys.readouterr().err
        assert left.value.code == 2
        assert errors.startswith(f"tools.{tool}: error: argument {option}: {shown} is not a")
        assert errors.count("\n") == 1


def test_all_types_are_of_one_module() -> None:
    types = {action.type for tool in REQUIRED for action in parser_of(tool)._actions} - {
        None,
        Path,
        str.upper,
    }
    assert {getattr(one, "__module__", None) for one in types} == {"tools.cli.option_values"}


OUTSIDE = [
    *((tool, "--limit", "0") for tool in REQUIRED if tool not in ("check", "evaluate", "formats", "inspect")),
    *((tool, "--threads", text) for tool in ("infer", "quantize") for text in ("0", "-1", "4097", "1.5")),
    ("auto_mixed_precision", "--jobs", "0"),
    ("auto_mixed_precision", "--jobs", "4097"),
    ("auto_mixed_precision", "--top1-target", "1.01"),
    ("auto_mixed_precision", "--output-index", "-2"),
    ("finetune", "--limit", "-1"),
    ("finetune", "--num-iterations", "0"),
    ("finetune", "--learning-rate", "0"),
    ("finetune", "--learning-rate", "-1"),
    ("finetune", "--fixed-seed", "-1"),
    ("finetune", "--batch-size", "0"),
    ("finetune", "--output-index", "-1"),
    ("finetune", "--memory-limit", "-1"),
    ("finetune", "--memory-limit", "1e308G"),
    ("quantize", "--random-data", "0"),
    ("quantize", "--random-data", "99999999999999999999"),
    ("quantize", "--image-size", "0"),
    ("quantize", "--image-size", "8x"),
    ("quantize", "--image-size", "x8"),
    ("quantize", "--image-size", "8x0"),
    ("quantize", "--std", "0"),
    ("quantize", "--std", "1,-1,1"),
    ("quantize", "--mean", "1,,1"),
    ("evaluate", "--peak", "0"),
]


@pytest.mark.parametrize(("tool", "option", "text"), OUTSIDE)
def test_numbers_outside_of_their_range(
    tool: str, option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parser_of(tool).parse_args([f"{option}={text}"])
    errors = capsys.readouterr().err
    assert left.value.code == 2
    assert errors.startswith(f"tools.{tool}: error: argument {option}: ") and errors.count("\n") == 1


def _takes(action: argparse.Action, value: float) -> bool:
    assert callable(action.type)
    try:
        return bool(action.type(f"{value:.0f}") == value)
    except argparse.ArgumentTypeError:
        return False


def test_options_take_what_their_keys_take() -> None:
    """Written down twice, so that a wrong number is a wrong option, before anything is imported."""
    actions = {action.dest: action for action in auto_mixed_precision.main.parser()._actions}
    for key, (least, most) in _RANGES.items():
        low = -1e9 if math.isinf(least) else least
        high = 1e9 if math.isinf(most) else most
        assert _takes(actions[key], low) and _takes(actions[key], high), key
        assert math.isinf(least) or not _takes(actions[key], low - 1), key
        assert math.isinf(most) or not _takes(actions[key], high + 1), key


def test_what_is_read() -> None:
    texts = [(whole(), "1"), (whole(-1), "-1"), (whole(0, 5), "5"), (whole(), "2147483647")]
    assert [reading(kind)(text) for kind, text in texts] == [1, -1, 5, 2**31 - 1]
    texts = [(number(), "-1.5"), (number(0), "0"), (number(0, 1), "1e0"), (number(0, above=True), "1e-9")]
    assert [reading(kind)(text) for kind, text in texts] == [-1.5, 0.0, 1.0, 1e-9]
    assert numbers(number())("1,-2,3.5") == (1.0, -2.0, 3.5)
    assert [size("8"), size("8x9"), size("8X9")] == [(8, 8), (8, 9), (8, 9)]
    assert [bytes_of(text) for text in ("0", "1k", "1KB", "1.5MiB", "4G")] == [
        *(0, 1024, 1024, 1.5 * 2**20, 2**32)
    ]
    assert [file_size(text) for text in ("7", "1k", "190MB", "1.5MiB", "2gib")] == [
        *(7, 1000, 190_000_000, 1.5 * 2**20, 2**31)
    ]
