"""Tuning by workers from the command line. Oracle: the file of one process, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import build, tunable
from tools import finetune, quantize

MODEL = tunable.conv_net()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with float.onnx, quantized.onnx, what it is tuned to, and samples in data."""
    found = tmp_path_factory.mktemp("tuning")
    build.save(MODEL, found / "float.onnx")
    (found / "data").mkdir()
    for i, feed in enumerate(tunable.samples(MODEL, 20)):
        np.savez(found / "data" / f"{i:02}.npz", **feed)  # type: ignore[arg-type]
    given = ["--input", "float.onnx", "--output", "quantized.onnx", "--config", "MX6"]
    assert quantize.main([str(found / one) if one.endswith("onnx") else one for one in given]) == 0
    assert finetune.main(_given(found, found / "whole.onnx")) == 0
    return found


def _given(folder: Path, output: Path, *more: object) -> list[str]:
    names = {"--float": folder / "float.onnx", "--quantized": folder / "quantized.onnx"}
    names |= {"--output": output, "--data": folder / "data"}
    return [str(one) for pair in names.items() for one in pair] + [str(one) for one in more]


@pytest.mark.parametrize(
    "options",
    [
        ["--jobs", 1],
        ["--jobs", 3, "--memory-limit", "0.001M"],
        pytest.param(["--dask", "local", "--jobs", 2], marks=pytest.mark.heavy),
    ],
)
def test_the_file_is_the_same_for_any_number_of_workers(
    folder: Path, tmp_path: Path, options: list[object]
) -> None:
    if "--dask" in options:
        pytest.importorskip("distributed")
    assert finetune.main(_given(folder, tmp_path / "t.onnx", *options)) == 0
    assert (tmp_path / "t.onnx").read_bytes() == (folder / "whole.onnx").read_bytes()


def test_a_scheduler_that_is_not_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("onnx_narrow.api.dask_executor._PATIENCE", 1.0)
    out = tmp_path / "t.onnx"
    assert finetune.main(_given(folder, out, "--dask", "tcp://127.0.0.1:9")) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("tools.finetune: error: no Dask scheduler answers at 'tcp://127.0.0.1:9': ")
    assert not out.exists()


@pytest.mark.parametrize("config", ["A8W8_ADAQUANT", pytest.param("MX6_ADAQUANT", marks=pytest.mark.heavy)])
def test_workers_measure_and_tune_what_is_quantized(folder: Path, tmp_path: Path, config: str) -> None:
    made = []
    for options in ([], ["--jobs", "2"]):
        given = ["--input", folder / "float.onnx", "--output", tmp_path / "q.onnx", "--data", folder / "data"]
        more = ["--config", config, "--set", "finetune.num_iterations=5", "--threads", "2"]
        more += ["--fast", "--force"]
        assert quantize.main([*map(str, given), *more, *options]) == 0
        made.append((tmp_path / "q.onnx").read_bytes())
    assert made[0] == made[1]
