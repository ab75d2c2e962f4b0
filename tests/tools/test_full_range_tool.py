"""Models on the full range of int8, from file to file. Oracles: printed lines, and zero points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.full_range.test_shift_tensors import PADDED, PADDED_DATA
from tools import check, finetune, quantize, report
from transforms import model_io
from transforms.full_range.recorded_shifts import recorded_shifts
from transforms.graph.constants import load
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme.sources import recorded_scheme


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A float model and a folder of samples."""
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(PADDED_DATA):
        np.savez(tmp_path / "data" / f"{i:02}.npz", **feed)
    onnx.save(PADDED, tmp_path / "float.onnx")
    names = ("float.onnx", "data", "int8.onnx", "tuned.onnx", "ranges.json", "again.onnx", "report.html")
    return {name.partition(".")[0]: str(tmp_path / name) for name in names}


def _quantize(files: dict[str, str], *more: str, output: str = "int8") -> int:
    given = ["--input", files["float"], "--output", files[output], "--config", "A8W8"]
    return quantize.main([*given, "--set", "tensors.y=float32", "--set", "correct_biases=false", *more])


def _with_data(files: dict[str, str], *more: str) -> int:
    return _quantize(files, "--data", files["data"], *more)


@pytest.mark.usefixtures("costs_here")
def test_a_shifted_file_is_tuned_and_compared(files: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    assert _with_data(files) == 0
    assert "the full range of int8 for 4 tensors" in capsys.readouterr().out
    graph = model_io.load(files["int8"])
    assert {"x", "c1", "r1"} <= recorded_shifts(graph).keys()
    pair = ["--float", files["float"], "--quantized", files["int8"], "--data", files["data"]]
    assert finetune.main([*pair, "--output", files["tuned"]]) == 0
    assert "Full range" not in capsys.readouterr().out  # they are used already
    assert recorded_shifts(model_io.load(files["tuned"])) == recorded_shifts(graph)
    assert check.main(["--input", files["int8"], "--target", "ort-cpu"]) in (0, 1)
    capsys.readouterr()
    assert report.main([*pair[:3], files["tuned"], *pair[4:], "--output", files["report"]]) == 0
    said = Path(files["report"]).read_text()
    assert "r1" in said


@pytest.mark.parametrize("wish", ["padded", "free", "off"])
def test_the_decision_is_recorded(wish: str, files: dict[str, str]) -> None:
    assert _with_data(files, "--full-range", wish) == 0
    some = any(node.op in ("Pad", "Sub") for node in model_io.load(files["int8"]).nodes)
    assert some == (wish == "padded")
    found = recorded_scheme(model_io.load(files["int8"]))
    decided = {"padded": [("x", "c1", "c2", "c3")], "free": [("c3",), "off"], "off": ["off"]}
    assert found is not None and found.full_range in decided[wish]


def test_ranges_of_shifted_tensors_come_back(files: dict[str, str]) -> None:
    """Oracle: the model that the exported ranges make, in which the zero points of those tensors are -128."""
    assert _with_data(files, "--export-ranges", files["ranges"]) == 0
    assert _quantize(files, "--ranges", files["ranges"], output="again") == 0
    shifted, again = (model_io.load(files[name]) for name in ("int8", "again"))
    assert recorded_shifts(shifted) and not recorded_shifts(again)
    zeros = {int(load(node.inputs[2])) for node in again.nodes if node.op == "QuantizeLinear"}
    assert zeros == {-128}
    run = RunOptions(simulate=True)
    models = [open_model(files[name], run) for name in ("int8", "again", "float")]
    found = [np.concatenate([model.run(feed)["y"] for feed in PADDED_DATA]) for model in models]
    apart, errors = (np.square(found[0] - other).sum(-1) for other in found[1:])
    # What a bias makes at borders of zeros lies near the middle of two codes, and is rounded the other way.
    assert np.median(apart) < 0.2 * np.median(errors)
