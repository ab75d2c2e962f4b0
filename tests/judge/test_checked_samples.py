"""Samples that decide nothing. Oracles: which feeds candidates are run on, and the metadata of the file."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers.judged_networks import network, samples
from tools import quantize, report
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.judge.checked_samples import checked
from transforms.judge.decisions import KEY
from transforms.judge.judge import Judge
from transforms.pipelines import fit as fit_step
from transforms.pipelines import measure, quantize_graph
from transforms.scheme import preset


@pytest.mark.parametrize(
    ("count", "spared"),
    [
        (1, []),
        (8, []),
        (9, []),
        (10, [8, 9]),
        (16, [13, 14, 15]),
        (32, [28, 29, 30, 31]),
        (500, [32, 33, 34, 35]),
    ],
)
def test_few_samples_decide_and_some_of_many_do_not(count: int, spared: list[int]) -> None:
    assert list(checked(count)) == spared


@pytest.mark.parametrize("count", [9, 20, 40])
def test_no_decision_sees_them(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = network(2, 0.3, 8.0), samples(count, 1)
    judged, fitted = list[np.ndarray](), list[np.ndarray]()

    class _Judge(Judge):
        def __init__(self, graph, feeds, run=None) -> None:  # type: ignore[no-untyped-def]
            judged.extend(feed["x"] for feed in feeds)
            super().__init__(graph, feeds, run)

    def _fit(*given, **more):  # type: ignore[no-untyped-def]
        fitted.extend(feed["x"] for feed in given[2])
        return found(*given, **more)

    found = fit_step.fit_weights
    monkeypatch.setattr(measure, "Judge", _Judge)
    monkeypatch.setattr(fit_step, "fit_weights", _fit)
    done = quantize_graph.quantize_graph(model_io.load(model), preset("W4A8"), CalibrationData(feeds))
    assert done.decisions.tried and judged and fitted
    places = [
        i for i, feed in enumerate(feeds) if any((feed["x"] == one).all() for one in (*judged, *fitted))
    ]
    assert not set(places) & set(checked(count))
    assert len(judged) == min(32, count - len(checked(count)))
    assert len(fitted) == count - len(checked(count))


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (12, "2 samples that decided"),
        pytest.param(8, "4 samples that choices were made by", marks=pytest.mark.heavy),
    ],
)
def test_the_record_is_in_the_file_and_in_the_report(tmp_path: Path, count: int, said: str) -> None:
    onnx.save(network(2, 0.3, 8.0), tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(samples(count, 1)):
        np.save(tmp_path / "data" / f"{i:02}.npy", feed["x"])
    paths = [("--output", "q.onnx"), ("--data", "data")]
    command = [word for option, name in paths for word in (option, str(tmp_path / name))]
    assert quantize.main(["--input", str(tmp_path / "float.onnx"), *command, "--config", "A8W8"]) == 0
    entries = {entry.key: entry.value for entry in onnx.load(tmp_path / "q.onnx").metadata_props}
    lines = entries[KEY].splitlines()
    assert any(line.startswith("ranges and scales: ") and " dB" in line for line in lines)
    assert lines[-1].startswith("outputs: ") and said in lines[-1]
    page = tmp_path / "report.html"
    models = ["--float", str(tmp_path / "float.onnx"), "--quantized", str(tmp_path / "q.onnx")]
    assert report.main([*models, "--data", str(tmp_path / "data"), "--output", str(page)]) == 0
    assert all(escape(line) in page.read_text() for line in lines)


def test_rules_leave_no_record(tmp_path: Path) -> None:
    onnx.save(network(2, 0.3, 8.0), tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "0.npy", samples(1, 1)[0]["x"])
    command = ["--input", str(tmp_path / "float.onnx"), "--output", str(tmp_path / "q.onnx")]
    assert quantize.main([*command, "--data", str(tmp_path / "data"), "--config", "A8W8", "--fast"]) == 0
    assert KEY not in {entry.key for entry in onnx.load(tmp_path / "q.onnx").metadata_props}
