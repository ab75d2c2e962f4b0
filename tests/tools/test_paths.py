"""Paths that stand alone on a command line, and tools that do not exist. Oracle: options with names."""

from __future__ import annotations

import pytest

from onnx_narrow import __main__ as command
from tests.helpers.tool_parsers import parser_of
from tools.cli.paths import with_names


@pytest.mark.parametrize(
    ("tool", "words", "named"),
    [
        ("quantize", "m q --config A8W8", "--input m --output q --config A8W8"),
        ("quantize", "--config A8W8 m q", "--config A8W8 --input m --output q"),
        ("quantize", "m --mean -1,2 --no-time q", "--input m --mean -1,2 --no-time --output q"),
        ("quantize", "-i m -o q --config=A8W8", "--input m --output q --config=A8W8"),
        ("quantize", "--output q m --mean -3", "--output q --input m --mean -3"),
        ("quantize", "--no-per-channel m q", "--no-per-channel --input m --output q"),
        ("quantize", "m q more", "--input m --output q more"),
        ("finetune", "f q t --data d", "--float f --quantized q --output t --data d"),
        ("report", "f q r.html --data d", "--float f --quantized q --output r.html --data d"),
        ("check", "--target ort-cpu m", "--target ort-cpu --input m"),
        ("inspect", "m --layers", "--input m --layers"),
        ("infer", "m out --data d", "--input m --output out --data d"),
        ("convert_fp32_to_bf16", "m b", "--input m --output b"),
        ("auto_mixed_precision", "m x --target mx6 mx9", "--input m --output x --target mx6 mx9"),
    ],
)
def test_paths_get_the_names_of_their_options(tool: str, words: str, named: str) -> None:
    parser = parser_of(tool)
    found = with_names(parser, words.split())
    main = {name: action.dest for action in parser._actions for name in action.option_strings}
    assert [main.get(word, word) for word in found] == [main.get(word, word) for word in named.split()]


@pytest.mark.parametrize(
    ("word", "meant"), [("quantise", "quantize"), ("convert-fp32-bf16", "convert_fp32_to_bf16"), ("xyz", "")]
)
def test_a_command_that_does_not_exist(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([word]) == 2
    line = capsys.readouterr().err
    near = f", did you mean '{meant}'?" if meant else ""
    assert (
        line
        == f"onnx-narrow: error: '{word}' is not the name of a tool{near}: onnx-narrow NAME runs a tool\n"
    )
