"""Oracle: ONNX Runtime runs the float model and the written ones; relations between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnx_narrow.summaries import running
from tests.helpers import plans, tunable
from tests.helpers.figures import decibels, expected
from tools.quantize import main
from transforms.judge import budget
from transforms.runtime import compare_runs

MODEL = tunable.conv_net()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, 40 samples, and 20 that are not shown to the tool."""
    path = tmp_path_factory.mktemp("few_bits")
    onnx.save(MODEL, path / "float.onnx")
    for name, feeds in (
        ("data", tunable.samples(MODEL, 60)[:40]),
        ("unseen", tunable.samples(MODEL, 60)[40:]),
    ):
        (path / name).mkdir()
        for i, feed in enumerate(feeds):
            np.save(path / name / f"{i:02}.npy", feed["x"])
    return path


def _quantize(folder: Path, *options: str) -> Path:
    output = folder / f"{'_'.join(options).replace('-', '')}.onnx"
    command = ["--input", str(folder / "float.onnx"), "--output", str(output), "--data", str(folder / "data")]
    assert main([*command, *options, "--force"]) == 0
    return output


def _pairs(folder: Path, path: Path, samples: Sequence[Path]) -> list[tuple[np.ndarray, np.ndarray]]:
    sessions = [onnxruntime.InferenceSession(model) for model in (folder / "float.onnx", path)]
    feeds = [{"x": np.load(sample)} for sample in samples]
    wanted, found = ([session.run(None, feed)[0] for feed in feeds] for session in sessions)
    return list(zip(wanted, found, strict=True))


def _decibels(folder: Path, path: Path) -> float:
    """Return the SNR of a model on samples that are not shown to the tool."""
    return decibels(_pairs(folder, path, sorted((folder / "unseen").glob("*.npy"))))


@pytest.mark.parametrize("config", ["W4A8", "MX6"])
def test_weights_are_rounded_by_outputs_unless_fast(
    folder: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = _quantize(folder, "--config", config)
    said = capsys.readouterr()
    assert "Weights rounded to fit layer outputs: 4 of 4 layers\n" in said.out
    shown = re.search(r"^Outputs: SQNR (\S+) \+- \S+ dB on 4 held-out samples \(30 and more", said.out, re.M)
    spared = sorted((folder / "data").glob("*.npy"))[32:36]
    assert shown is not None
    assert float(shown[1]) == pytest.approx(expected(_pairs(folder, chosen, spared)), abs=0.06)
    fast = _quantize(folder, "--config", config, "--fast")
    assert "rounded by outputs" not in capsys.readouterr().out
    assert _decibels(folder, chosen) > _decibels(folder, fast) + 1


def test_fast_is_the_way_of_a_named_method(folder: Path) -> None:
    """Oracle: the method that few bits had without samples, MSE, gives the same weights."""
    fast, named = (
        onnx.load(_quantize(folder, "--config", "W4A8", *options))
        for options in (["--fast"], ["--set", "weight_method=MSE", "--set", "equalize_layers=false"])
    )
    weights = [
        [one for one in model.graph.initializer if one.name.startswith("w")] for model in (fast, named)
    ]
    assert weights[0] == weights[1] and weights[0]


def test_poor_outputs_are_said_with_the_preset_that_tunes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LEAST", 60.0)
    _quantize(folder, "--config", "MX4")
    warning = capsys.readouterr().err
    assert re.search(
        r"^Warning: MX4: outputs at \d\d\.\d dB on 4 held-out samples; "
        r"--config MX4_ADAQUANT tunes the weights$",
        warning,
        re.M,
    )
    _quantize(folder, "--config", "A8W8")
    assert capsys.readouterr().err.endswith(
        "--config A8W8_ADAQUANT tunes the weights, --config A16W8 has activations of 16 bits\n"
    )
    _quantize(folder, "--config", "W4A8")
    assert capsys.readouterr().err.endswith(
        "; --config W4A8_ADAQUANT tunes the weights, --config A8W8 has weights of 8 bits\n"
    )
    monkeypatch.undo()
    for options in (["--config", "A8W8"], ["--config", "MX4", "--fast"], ["--config", "MX9"]):
        _quantize(folder, *options)
        assert "Warning" not in capsys.readouterr().err


def test_poor_outputs_without_scales_to_choose(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LEAST", 60.0)
    _quantize(folder, "--config", "MX4", "--limit", "1")
    assert re.search(r"Warning: MX4: outputs at \d+\.\d dB on 1 sample; ", capsys.readouterr().err)


def test_tuned_presets_choose_nothing_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _quantize(folder, "--config", "W4A8_ADAQUANT")
    said = capsys.readouterr()
    assert "output error" not in said.out
    assert "Tuned: 4 of 4 layers" in said.out


def test_outputs_of_many_nodes_are_not_compared(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a quantized model of 14,400 nodes takes ONNX Runtime eight times as long as quantizing it."""
    monkeypatch.setattr(running, "LEAST", 1000.0)
    _quantize(folder, "--config", "A8W8")
    assert "Warning: A8W8: outputs at" in capsys.readouterr().err
    monkeypatch.setattr(budget, "MOST_NODES", 1)
    monkeypatch.setattr(compare_runs, "MOST_NODES", 1)
    _quantize(folder, "--config", "A8W8")
    said = capsys.readouterr()
    assert "Outputs not compared: more than" in said.out and not said.err
    assert "were not tried." in said.out


def test_samples_with_which_the_model_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "(int64[N] i) => (float[N, 4] y) { g = Gather(t, i) y = MatMul(g, w) }"
    onnx.save(plans.model(text, {"t": (2, 8), "w": (8, 4)}), tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "far.npz", i=np.array([7]))
    command = ["--input", str(tmp_path / "float.onnx"), "--output", str(tmp_path / "out.onnx")]
    assert main([*command, "--data", str(tmp_path / "data"), "--config", "MX9"]) == 1
    assert re.search(r"error: sample 'far': the model fails: .*out of data bounds", capsys.readouterr().err)
    assert not (tmp_path / "out.onnx").exists()
