"""A script without a main guard that calls every function. Oracle: the lines that it appends to a log."""

from __future__ import annotations

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

SCRIPT = """
import multiprocessing
import sys

open("log", "a").write("x")
multiprocessing.set_start_method(sys.argv[1])

import numpy as np
import onnx_narrow as on


def near(expected, found):
    return -float(np.abs(expected - found).max())


data = [np.load(f"{i}.npy") for i in range(4)]
quick = {"data": data, "time": False}
made = on.quantize("m.onnx", "q.onnx", config="W4A8", fast=True, jobs=2, **quick)
on.convert_bf16("m.onnx", "b.onnx", time=False)
on.finetune("m.onnx", "q.onnx", "t.onnx", algorithm="adaquant", num_iterations=2, jobs=2, **quick)
on.mix_precision("m.onnx", "x.onnx", config="BF16", target="mx6", sqnr_target=20, jobs=2, **quick)
on.evaluate("m.onnx", made, data=data, metrics={"near": near})
on.infer("q.onnx", "results", data=data, time="m.onnx")
on.report("m.onnx", "q.onnx", "r.html", data=data)
on.check("q.onnx", "ort-cpu")
on.inspect("q.onnx")
on.save(on.load("q.onnx"), "s.onnx")
on.preset("A8W8"), on.presets(), on.formats(), on.targets(), on.Scheme, on.Result, on.QUANTIZE
open("log", "a").write("y")
"""


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_script_that_calls_everything_runs_once(method: str, tmp_path: Path) -> None:
    missing = [name for name in onnx_narrow.__all__ if f"on.{name}" not in SCRIPT]
    assert not missing
    model = tunable.conv_net()
    onnx.save(model, tmp_path / "m.onnx")
    for i, sample in enumerate(tunable.samples(model, 4)):
        np.save(tmp_path / f"{i}.npy", sample["x"])
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py", method],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-800:]
    assert (tmp_path / "log").read_text() == "xy"
