"""The product on a processor whose sums saturate, in an emulator. Oracle: ONNX Runtime there, on the file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers.emulated import HASWELL, run_on
from tests.processors import run_models
from tests.processors.test_haswell import source

pytestmark = pytest.mark.heavy

COUNT = 8


@pytest.mark.parametrize("saturation", ["avoid", "ignore"])
def test_saturation_that_was_asked_for_is_said(saturation: str, tmp_path: Path) -> None:
    """The model is written, with the figures of both sessions; by default neither differs from the other."""
    model, feeds = source("Conv", COUNT)
    data, target = tmp_path / "data", tmp_path / "q.onnx"
    data.mkdir()
    onnx.save(model, tmp_path / "m.onnx")
    for i, feed in enumerate(feeds):
        np.savez(data / f"{i}.npz", **feed)  # type: ignore[arg-type]
    paths = ["--input", tmp_path / "m.onnx", "--output", target, "--data", data, "--no-time"]
    options = ["--config", "U8S8", "--set", f"saturation={saturation}"]
    said = run_on(HASWELL, "-m", "tools.quantize", *paths, *options)

    runs = tmp_path / "runs"
    run_models.write(runs / "m", model, feeds)
    run_models.write(runs / "q", onnx.load(target), feeds)
    run_on(HASWELL, run_models.__file__, runs)
    sessions = run_models.made(runs / "q"), run_models.run(runs / "q", is_optimized=False)
    here, exact = (_decibels(run_models.made(runs / "m"), made) for made in sessions)
    figure = re.search(r"SQNR (\S+)", said)
    assert figure and float(figure[1]) == pytest.approx(here, abs=0.5)
    line = re.search(r"Warning: 8-bit sums of 1 product may saturate .*? at (\S+) dB instead of (\S+)", said)
    if saturation == "avoid":
        assert here == pytest.approx(exact, abs=0.5) and here > 40 and line is None
    else:
        assert line and float(line[1]) == pytest.approx(here, abs=0.5) and here < 20
        assert float(line[2]) == pytest.approx(exact, abs=0.5) and exact > 40


def _decibels(wanted: list[run_models.Arrays], made: list[run_models.Arrays]) -> float:
    pairs = list(zip(wanted, made, strict=True))
    error = sum(np.square(a["y"] - b["y"], dtype=np.float64).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a["y"], dtype=np.float64).sum() for a, _ in pairs) / error))
