"""``--memory-limit`` of a calibration. Oracle: sizes of tensors by hand, and the model without the option."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_narrow.options import options

MODEL = """
    <ir_version: 8, opset_import: ["": 17]> pair (float[rows, 64] x) => (float[rows, 2] y) {
        a = Tanh (x)
        y = MatMul (a, w)
    }"""
NEEDED = (64 + 64 + 2) * 4 * 10
"""Bytes of x, a and y, of 10 rows, which are there together when y is made."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(MODEL)
    weight = np.linspace(-1, 1, 128, dtype=np.float32).reshape(64, 2)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for name, rows in {"few": 2, "many": 10}.items():
        np.save(tmp_path / "data" / f"{name}.npy", np.ones((rows, 64), np.float32))
    return tmp_path


def run(folder: Path, tool: str, output: str, *options: str) -> int:
    paths = ["--input", folder / "m.onnx", "--output", folder / output, "--data", folder / "data"]
    return int(importlib.import_module(f"tools.{tool}").main([*map(str, paths), *options]))


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        ("quantize", ["--config", "A8W8"]),
        ("quantize", ["--config", "A8W8", "--jobs", "2"]),
        ("auto_mixed_precision", ["--config", "A16W8", "--target", "int8", "--sqnr-target", "1"]),
    ],
)
def test_a_limit_that_cannot_hold_is_an_error_of_one_line(
    tool: str, options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, tool, "q.onnx", *options, "--memory-limit", "5k") == 1
    errors = capsys.readouterr().err.splitlines()
    words = f"memory limit: 5,120 bytes cannot hold, sample 'many' has tensors of {NEEDED:,} bytes at once"
    assert len(errors) == 1 and errors[0].endswith(words)
    assert not (folder / "q.onnx").exists()


def test_a_limit_that_holds_changes_nothing(folder: Path) -> None:
    assert run(folder, "quantize", "q.onnx", "--config", "A8W8", "--memory-limit", "6k") == 0
    assert run(folder, "quantize", "r.onnx", "--config", "A8W8", "--fast") == 0
    models = [onnx.load(folder / name) for name in ("q.onnx", "r.onnx")]
    assert models[0].graph == models[1].graph


def test_a_limit_of_tuning_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words of tools.finetune: the input of a layer and its output are there at once."""
    options = ["--config", "BFP16_ADAQUANT", "--memory-limit", "1k"]
    for i in range(4):
        np.save(folder / "data" / f"{i}.npy", np.ones((3 + i, 64), np.float32) * i)
    assert run(folder, "quantize", "q.onnx", *options) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "imit" in line]
    words = r"Memory limit: 1,024 bytes cannot hold, one sample has tensors of [\d,]+ bytes in one step"
    assert len(said) == 1 and re.fullmatch(words, said[0])


def test_the_option_is_one_in_all_tools() -> None:
    found = [options(job)["memory_limit"] for job in ("quantize", "mix_precision", "finetune")]
    assert len({(one.names, one.read) for one in found}) == 1
