"""What fine-tuning says of errors. Oracle: 10 log10(power / error), and what no logarithm can say."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from onnx_narrow.summaries.tuning import in_words, reasons, tuning_lines
from tests.helpers import build, tunable
from tools import finetune, quantize
from transforms.finetune.tuned import LayerReport, TunedLayers, TunedModel
from transforms.judge.errors import Gain

NAN, INF = math.nan, math.inf
FLAT = ", the output is almost constant on held-out samples"


@pytest.mark.parametrize(
    ("power", "errors", "words"),
    [
        (100.0, (1.0, 0.1), "20.00 -> 30.00 dB"),
        (1.0, (10.0,), "-10.00 dB"),
        (1.0, (0.5, 0.0), "3.01 -> inf dB"),
        (1.0, (-1e-18, -1e-18), "inf -> inf dB"),  # a difference of sums that are equal but for rounding
        (0.0, (0.0, 0.0), "inf -> inf dB"),
        (0.0, (2e-4, 1e-4), f"squared error 0.0002 -> 0.0001{FLAT}"),
        (1e-17, (2e-4, 0.0), f"squared error 0.0002 -> 0{FLAT}"),
        (-1e-17, (2e-4, 1e-4), f"squared error 0.0002 -> 0.0001{FLAT}"),
        (1.0, (INF, 0.5), "squared error inf -> 0.5"),
        (1.0, (NAN, NAN), "squared error nan -> nan"),
        (INF, (1.0, 0.5), "squared error 1 -> 0.5"),
        (NAN, (1.0, 0.5), "squared error 1 -> 0.5"),
    ],
)
def test_errors_are_told_in_decibels_where_there_are_any(
    power: float, errors: tuple[float, ...], words: str
) -> None:
    assert in_words(power, *errors) == words


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (0.1, 0.01, "10.00 -> 20.00 dB"),
        (0.1, 0.0, "10.00 -> inf dB"),
        (INF, 0.01, "none -> 20.00 dB (none: an output of the float model is zero there, or"),
        (
            INF,
            INF,
            "none -> none dB (none: an output of the float model is zero there, or one is not finite)",
        ),
    ],
)
def test_outputs_without_a_ratio_are_said_to_have_none(before: float, after: float, words: str) -> None:
    walked = TunedLayers([LayerReport("a", "Conv", 1.0, 0.1, 10.0, "weights", 0.0)])
    done = TunedModel(gs.Graph(), before, after, "weights", walked)
    *_, last = tuning_lines(done, 3)
    assert last.startswith(f"Outputs on held-out samples: {words}")
    *_, last = tuning_lines(dataclasses.replace(done, attempt=None), 3)
    first = words.partition(" -> ")[0]
    assert last.startswith(f"Outputs on held-out samples: {first} dB") and "->" not in last
    assert last.endswith("; model not changed: no improvement")


def test_a_tuning_that_gains_nothing_has_one_figure_and_what_it_would_change() -> None:
    walked = TunedLayers([LayerReport("a", "Conv", 1.0, 0.1, 10.0, "weights", 0.0)])
    gain = Gain(-6.48, 2.73, -6.48, 2.73, -6.48, 2.73)
    done = TunedModel(gs.Graph(), 10**-4.213, 10**-4.213, None, walked, gain)
    *_, last = tuning_lines(done, 3)
    why = "tuned weights would change that by -6.48 +- 2.73 dB"
    assert last == f"Outputs on held-out samples: 42.13 dB; model not changed: {why}"


def test_the_output_that_blocked_is_named_and_what_was_put_back() -> None:
    """Three layers, the last is put back; then nothing is kept."""
    layers = [LayerReport(name, "Conv", 1.0, 0.1, 10.0, "new", 0.0, of_inputs=0.25) for name in "abc"]
    done = TunedModel(
        gs.Graph(), 0.1, 0.01, "weights", TunedLayers(layers), put_back=frozenset({2}), blocked="boxes"
    )
    *rows, count, last = tuning_lines(done, 30)
    assert [row.split("  ")[-2] for row in rows] == ["new", "new", "put back"]
    assert count == "Tuned: 2 of 3 layers on 30 samples"
    assert last.endswith("dB; put back for output 'boxes': 1 layer")
    *_, reason, last = tuning_lines(dataclasses.replace(done, attempt=None, put_back=frozenset()), 30)
    assert last.endswith("10.00 dB; model not changed: no improvement, output 'boxes' regresses")
    assert reason == "Error of inputs: 25% to 25% of the layers' errors remain with float weights"
    assert next(reasons(done)).startswith("a: 25% of its error comes from its inputs")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with float.onnx, quantized.onnx (W4A8) and three samples in data."""
    model = tunable.conv_net()
    build.save(model, tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(tunable.samples(model, 3)):
        np.savez(tmp_path / "data" / f"{i}.npz", **feed)  # type: ignore[arg-type]
    paths = ["--input", tmp_path / "float.onnx", "--output", tmp_path / "quantized.onnx"]
    given = [*paths, "--config", "W4A8", "--data", tmp_path / "data"]
    assert quantize.main(list(map(str, given))) == 0
    return tmp_path


def _run(folder: Path, *more: str) -> int:
    names = {"float": "float.onnx", "quantized": "quantized.onnx", "output": "tuned.onnx", "data": "data"}
    return finetune.main([*(f"--{flag}={folder / name}" for flag, name in names.items()), *more])


def test_a_layer_with_one_held_out_row_is_told_in_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of three samples is held out, and a Gemm has one row of it: that does not vary."""
    assert _run(folder, "--verbose") == 0
    said = capsys.readouterr().out
    (dense,) = [line for line in said.splitlines() if line.startswith("dense ")]
    assert re.search(r"  Gemm  squared error 0?\.?\d[\d.]*(e-\d+)? -> ", dense) and FLAT in dense
    assert "-inf" not in said and "nan" not in said


def test_samples_are_counted_and_not_batches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(folder, "--batch-size", "2") == 0
    assert "layers on 3 samples" in capsys.readouterr().out


def test_a_batch_of_all_samples_leaves_none_to_judge_by(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(folder, "--batch-size", "3") == 1
    words = "batch size 3 puts all 3 samples together: one batch to fit to, one to judge by are needed"
    model = folder / "quantized.onnx"
    assert capsys.readouterr().err == f"tools.finetune: error: {words} (in '{model}')\n"
