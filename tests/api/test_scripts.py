"""Scripts for other quantizers, and how few of their lines change.

Each script runs as a program in a folder of its own, that for ``quantize_static`` before and after. AMD Quark
is not installed: the lines are those of its guide on A8W8. Oracle: the outputs of the float model.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_narrow
from tests.helpers import tunable

ROOT = Path(__file__).resolve().parents[2]

READER = """
import numpy


class Reader(CalibrationDataReader):
    def __init__(self):
        self.samples = iter([{"x": numpy.load(f"{i}.npy")} for i in range(8)])

    def get_next(self):
        return next(self.samples, None)


reader = Reader()
"""

STATIC = f"""
from onnxruntime.quantization import CalibrationDataReader, QuantType
from onnxruntime.quantization import quantize_static
{READER}
quantize_static("m.onnx", "q.onnx", reader, activation_type=QuantType.QUInt8, per_channel=True)
"""
STATIC_HERE = STATIC.replace(
    "from onnxruntime.quantization import quantize_static", "import onnx_narrow"
).replace(
    'quantize_static("m.onnx", "q.onnx", reader, activation_type=QuantType.QUInt8, per_channel=True)',
    'onnx_narrow.quantize("m.onnx", "q.onnx", config="U8S8", data=reader, per_channel=True)',
)

QUARK = f"""
from onnxruntime.quantization.calibrate import CalibrationDataReader
from quark.onnx.quantization.config import Config, get_default_config
from quark.onnx import ModelQuantizer
{READER}
quant_config = get_default_config("A8W8")
quantization_config = Config(global_quant_config=quant_config)
quantizer = ModelQuantizer(quantization_config)
quantizer.quantize_model("m.onnx", "q.onnx", reader)
"""
QUARK_HERE = f"""
from onnxruntime.quantization.calibrate import CalibrationDataReader
import onnx_narrow
{READER}
onnx_narrow.quantize("m.onnx", "q.onnx", config="A8W8", data=reader)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tunable.conv_net()
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for i, sample in enumerate(tunable.samples(model, 8)):
        for place in (tmp_path, tmp_path / "data"):
            np.save(place / f"{i}.npy", sample["x"])
    return tmp_path


def _run(script: str, folder: Path) -> None:
    (folder / "script.py").write_text(script, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def _changed(before: str, after: str) -> tuple[int, int]:
    """Return how many lines are written anew, and how many of the old ones go."""
    marks = [line[0] for line in difflib.ndiff(before.splitlines(), after.splitlines())]
    return marks.count("+"), marks.count("-")


def _sqnr(folder: Path) -> float:
    found = onnx_narrow.evaluate(folder / "m.onnx", folder / "q.onnx", data=folder / "data")
    return float(found["mean"]["sqnr"])


def test_a_script_for_quantize_static_changes_in_two_lines(folder: Path) -> None:
    assert _changed(STATIC, STATIC_HERE) == (2, 2)
    for script in (STATIC, STATIC_HERE):
        _run(script, folder)
        assert _sqnr(folder) > 40
        (folder / "q.onnx").unlink()


def test_a_script_for_amd_quark_takes_two_lines_for_its_six(folder: Path) -> None:
    """Two imports and four lines are one import and one call."""
    assert _changed(QUARK, QUARK_HERE) == (2, 6)
    _run(QUARK_HERE, folder)
    assert _sqnr(folder) > 20
