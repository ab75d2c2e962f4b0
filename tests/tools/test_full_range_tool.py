"""Models on the full range of int8, from file to file. Oracles: printed lines, and the record of shifts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.full_range.test_shift_tensors import PADDED, PADDED_DATA
from tools import check, finetune, quantize, report
from transforms import model_io
from transforms.full_range.recorded_shifts import recorded_shifts


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A float model and a folder of samples."""
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(PADDED_DATA):
        np.savez(tmp_path / "data" / f"{i:02}.npz", **feed)
    onnx.save(PADDED, tmp_path / "float.onnx")
    names = ("float.onnx", "data", "int8.onnx", "tuned.onnx", "again.onnx", "report.html")
    return {name.partition(".")[0]: str(tmp_path / name) for name in names}


def _quantize(files: dict[str, str]) -> int:
    paths = ["--input", files["float"], "--output", files["int8"], "--data", files["data"]]
    return quantize.main([*paths, "--config", "A8W8", "--set", "tensors.y=float32"])


def _tune(files: dict[str, str], quantized: str, output: str, *more: str) -> int:
    pair = ["--float", files["float"], "--quantized", files[quantized], "--data", files["data"]]
    return finetune.main([*pair, "--output", files[output], *more])


@pytest.mark.usefixtures("costs_here")
def test_a_shifted_file_is_tuned_and_compared(files: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    assert _quantize(files) == 0
    assert not recorded_shifts(model_io.load(files["int8"]))
    assert _tune(files, "int8", "tuned") == 0
    assert "Full range of int8 used: 4 tensors" in capsys.readouterr().out
    shifts = recorded_shifts(model_io.load(files["tuned"]))
    assert {"x", "c1", "r1"} <= shifts.keys()
    assert _tune(files, "tuned", "again") == 0
    assert "Full range" not in capsys.readouterr().out  # they are used already
    assert recorded_shifts(model_io.load(files["again"])) == shifts
    assert check.main(["--input", files["tuned"], "--target", "ort-cpu"]) in (0, 1)
    pair = ["--float", files["float"], "--quantized", files["tuned"], "--data", files["data"]]
    assert report.main([*pair, "--output", files["report"]]) == 0
    assert "r1" in Path(files["report"]).read_text()


@pytest.mark.parametrize("wish", ["free", "off"])
def test_which_tensors_are_shifted_is_an_option(wish: str, files: dict[str, str]) -> None:
    assert _quantize(files) == 0
    assert _tune(files, "int8", "tuned", "--full-range", wish) == 0
    tuned = model_io.load(files["tuned"])
    assert not any(node.op in ("Pad", "Sub") for node in tuned.nodes)
    shifts = recorded_shifts(tuned)
    assert ("c3" in shifts, "c1" in shifts) == (wish == "free", False)
