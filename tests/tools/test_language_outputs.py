"""What the summary says of a language model, and when it is refused. Oracle: NumPy's divergence of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnx_narrow
from tests.moves.test_lost_rows import decoder, divergence, texts
from tools.finetune import main as tune
from tools.quantize import main

Pair = tuple[onnx.ModelProto, dict[str, np.ndarray]]
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
    words = r"KL divergence of ([\d.e-]+) nats a token on 4 samples held out in 4 folds"
    said = re.search(words, capfd.readouterr().out)
    assert said is not None
    assert float(said[1]) == pytest.approx(_nats(decoder(3000), list(_in_folds(folder))), rel=0.02)


def _run(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs in a session as users open it."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def _nats(model: onnx.ModelProto, pairs: Sequence[Pair]) -> float:
    found = []
    for made, feed in pairs:
        x, y = (_run(one, feed)["logits"].astype(np.float64) for one in (model, made))
        p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (x, y))
        found.append((p * np.log(p / q)).sum(-1).mean())
    return float(np.mean(found))


def _in_folds(folder: Path) -> Iterator[Pair]:
    """Yield each of the last four texts, and the model that the scheme makes of texts of other folds."""
    entries = {one.key: one.value for one in onnx.load(folder / "made.onnx").metadata_props}
    (folder / "scheme.toml").write_text(entries["onnx_narrow.scheme"])
    feeds = texts(12, 1)
    for place in range(8, 12):
        others = [feed for other, feed in enumerate(feeds) if other % 4 != place % 4]
        how = {"config": folder / "scheme.toml", "data": others, "fast": True, "time": False}
        made = onnx_narrow.quantize(folder / "float.onnx", **how).model  # type: ignore[arg-type]
        yield made, feeds[place]


def test_other_outputs_are_told_apart_in_their_own_unit(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nats of logits and dB of states have no mean. Oracle: NumPy's SQNR of the state, and the divergence."""
    model = decoder(3000)
    model.graph.output.append(onnx.helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, ["b", "t", 16]))
    onnx.save(model, folder / "float.onnx")
    assert _quantize(folder) == 0
    said = re.search(
        r"Outputs: KL divergence of (\S+) nats a token on 4 samples .*; 1 other output at (\S+) dB",
        capfd.readouterr().out,
    )
    assert said is not None
    pairs = list(_in_folds(folder))
    assert float(said[1]) == pytest.approx(_nats(model, pairs), rel=0.02)
    exact = np.array([_run(model, feed)["d"] for _, feed in pairs])
    found = np.array([_run(made, feed)["d"] for made, feed in pairs])
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
    lines = [one for one in capfd.readouterr().err.splitlines() if "was not measured" in one]
    assert len(lines) == bool(warned)
    assert all(warned in line and "--data DIR" in line for line in lines)


def test_what_is_measured_is_not_said_to_be_unmeasured(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _quantize(folder) == 0
    assert "was not measured" not in capfd.readouterr().err
