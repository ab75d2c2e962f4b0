"""What the summary says of a language model, and when it is refused. Oracle: NumPy's divergence of tokens."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import conversion
from tests.moves.test_lost_rows import decoder, divergence, texts
from tools.finetune import main as tune
from tools.quantize import main

LOST = "keep_float=false"  # tensors that hold a large token stay integers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a decoder and texts."""
    onnx.save(decoder(3000), tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(texts(12, 1)):
        np.save(tmp_path / "data" / f"{i:02}.npy", feed["ids"])
    return tmp_path


def _quantize(folder: Path, *options: str) -> int:
    places = "--input", str(folder / "float.onnx"), "--output", str(folder / "made.onnx")
    return main([*places, "--config", "A8W8", "--data", str(folder / "data"), "--no-time", *options])


def test_a_model_of_no_use_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _quantize(folder, "--set", LOST) == 1
    assert not (folder / "made.onnx").exists()
    (line,) = (one for one in capfd.readouterr().err.splitlines() if "error:" in one)
    assert "nats a token" in line and "--config A16W8" in line and "--fast" in line
    assert _quantize(folder, "--set", LOST, "--fast") == 0
    made = (folder / "made.onnx").read_bytes()
    assert divergence(decoder(3000), made, texts(8, 2)) > 0.5


def test_advice_names_nothing_that_is_on(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Weights of 2 bits lose enough for a warning; with A8W8's own activations A16W8 is the advice."""
    for activation in ("int8", "int16"):
        assert _quantize(folder, "--set", "weight=int2", "--set", f"activation={activation}", "--force") == 0
        (line,) = (one for one in capfd.readouterr().err.splitlines() if "nats a token" in one)
        assert ("--config A16W8" in line) == (activation == "int8")


def test_the_summary_tells_the_divergence(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _quantize(folder) == 0
    said = re.search(r"KL divergence of ([\d.e-]+) nats a token on 1 held-out sample", capfd.readouterr().out)
    assert said is not None
    made = (folder / "made.onnx").read_bytes()
    assert float(said[1]) == pytest.approx(divergence(decoder(3000), made, texts(12, 1)[-1:]), rel=0.02)


def test_other_outputs_are_told_apart_in_their_own_unit(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nats of logits and dB of states have no mean. Oracle: NumPy's SQNR of the state, and the divergence."""
    model = decoder(3000)
    model.graph.output.append(onnx.helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, ["b", "t", 16]))
    onnx.save(model, folder / "float.onnx")
    assert _quantize(folder) == 0
    said = re.search(
        r"Outputs: KL divergence of (\S+) nats a token on 1 held-out sample.*; 1 other output at (\S+) dB",
        capfd.readouterr().out,
    )
    assert said is not None
    feeds, made = texts(12, 1)[-1:], onnx.load(folder / "made.onnx")
    assert float(said[1]) == pytest.approx(divergence(model, made.SerializeToString(), feeds), rel=0.02)
    exact, found = (
        np.array([conversion.run(one, feed, optimize=True)["d"] for feed in feeds]) for one in (model, made)
    )
    level = 10 * np.log10(np.square(exact).sum() / np.square(exact - found).sum())
    assert float(said[2]) == pytest.approx(level, abs=0.2)


def test_tuning_tells_the_divergence(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _quantize(folder) == 0
    pair = "--float", str(folder / "float.onnx"), "--quantized", str(folder / "made.onnx")
    assert tune([*pair, "--output", str(folder / "tuned.onnx"), "--data", str(folder / "data")]) == 0
    said = re.search(r"held-out samples: KL divergence of (\S+) -> (\S+) nats", capfd.readouterr().out)
    assert said is not None and 0 < float(said[2]) <= float(said[1]) < 0.5


@pytest.mark.parametrize(
    ("config", "warned"),
    [("MXFP4E2M1", "activations in mxfp4 "), ("W2", "weights in int2 "), ("W4", ""), ("BF16", "")],
)
def test_what_nothing_measured_is_said(
    folder: Path, capfd: pytest.CaptureFixture[str], config: str, warned: str
) -> None:
    """Activations of few bits and weights of 2 may ruin a model; weights of 4 bits and 16 bits do not."""
    places = "--input", str(folder / "float.onnx"), "--output", str(folder / "made.onnx")
    assert main([*places, "--config", config]) == 0
    lines = [one for one in capfd.readouterr().err.splitlines() if "nothing was measured" in one]
    assert len(lines) == bool(warned)
    assert all(warned in line and "--data DIR" in line for line in lines)


def test_what_is_measured_is_not_said_to_be_unmeasured(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _quantize(folder) == 0
    assert "nothing was measured" not in capfd.readouterr().err
