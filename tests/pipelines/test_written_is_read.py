"""What the tools write they read, however many weights there are. Oracle: the reader, with low limits.

Constants of up to 2 MB, or 8 times what is stored, pass; the weights of the model come to more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import build
from tools import convert_fp32_to_bf16, quantize
from transforms import features, model_io
from transforms.functions import DOMAIN
from transforms.runtime.session import open_session

SIDE = 512


@pytest.fixture
def low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a model, where limits are low."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((SIDE, SIDE)).astype(np.float32) for name in ("v", "w")}
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "v"], ["h"]),
        onnx.helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    ends = [build.value(name, ["n", SIDE]) for name in "xy"]
    build.save(build.model(nodes, ends[:1], ends[1:], weights), tmp_path / "m.onnx")
    monkeypatch.setattr("transforms.model.constant_size.ALL", 1 << 21)
    return tmp_path


def _write(folder: Path, *options: str, tool: object = quantize) -> int:
    command = ["--input", str(folder / "m.onnx"), "--output", str(folder / "q.onnx"), *options]
    return int(tool.main(command))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options",
    [
        *("--config W8", "--config W4", "--config W4 --matmul-nbits", "--config W2 --matmul-nbits"),
        *("--config MX6", "--config MX6 --no-functions", "--config INT32 --random-data 1"),
        *(f"--config {name} --storage packed" for name in ("MX6", "MX9", "BFP16", "MXFP6E3M2")),
        *("--format with_cast", "--format simulate_bf16", "--format customqdq"),
    ],
)
def test_what_is_written_is_read(options: str, low: Path) -> None:
    tool = convert_fp32_to_bf16 if "--format" in options else quantize
    assert _write(low, *options.split(), tool=tool) == 0
    assert model_io.load(low / "q.onnx").nodes
    made = open_session(low / "q.onnx").run({"x": np.zeros((1, SIDE), np.float32)})
    assert made["y"].shape == (1, SIDE)


def test_what_could_not_be_read_is_not_written(
    low: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if the reader did not know the functions that decode packed weights."""
    (coded,) = features.coded_in([DOMAIN])
    known = replace(features.open_in([DOMAIN])[0], coded=replace(coded, decode=lambda *_: 0))
    monkeypatch.setitem(features._BY_MARK, DOMAIN, known)
    assert _write(low, "--config", "MX6", "--storage", "packed") == 1
    said = capsys.readouterr().err
    assert "no tool could read what would be written: node " in said and said.count("\n") == 1
    assert not (low / "q.onnx").exists()
