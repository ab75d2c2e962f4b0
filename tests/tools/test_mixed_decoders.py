"""Decoders in two formats within a size. Oracle: NumPy's divergence of the written file on other texts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers.cached_decoder import WIDTH, WORDS, cached_decoder, feed_of
from tests.tools.test_kv_cache import divergence
from tools import auto_mixed_precision, quantize

TEXTS, TOKENS = 9, 24
MIXED = ["--config", "W8", "--set", "block_size=32", "--target", "float32/int4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a decoder, and texts whose words are not equally frequent."""
    model, random = cached_decoder(), np.random.default_rng(3)
    onnx.save(model, tmp_path / "m.onnx")
    for name in ("data", "others"):
        (tmp_path / name).mkdir()
        for i in range(TEXTS):
            words = random.zipf(1.3, TOKENS) % WORDS
            np.savez(tmp_path / name / f"{i}.npz", **feed_of(model, words))  # type: ignore[arg-type]
    return tmp_path


def _mixed(folder: Path, size: int, *more: str, data: str = "data") -> int:
    words = ["--input", f"{folder}/m.onnx", "--output", f"{folder}/q.onnx", "--data", f"{folder}/{data}"]
    given = [*words, *MIXED, "--size", str(size), "--no-time", "--force", "--verbose", *more]
    return auto_mixed_precision.main(given)


def _lost(folder: Path, texts: list[Path]) -> float:
    one, other = (onnxruntime.InferenceSession(folder / name) for name in ("m.onnx", "q.onnx"))
    feeds = [dict(np.load(path)) for path in texts]
    pairs = ([s.run(["logits"], feed)[0].astype(np.float64) for s in (one, other)] for feed in feeds)
    return float(np.mean([divergence(*pair) for pair in pairs]))


def _weights(model: bytes) -> dict[str, bytes]:
    return {tensor.name: tensor.raw_data for tensor in onnx.load_from_string(model).graph.initializer}


def test_a_size_spends_bits_and_fits_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figure is of the last text, which fitted nothing: it is not in what is measured without it."""
    texts, size = sorted((folder / "data").iterdir()), 17_400
    assert _mixed(folder, size, "--set", "fit_weights=false") == 0
    assert "Weights rounded" not in capsys.readouterr().out
    plain = _lost(folder, sorted((folder / "others").iterdir()))
    assert _mixed(folder, size) == 0
    said = capsys.readouterr().out
    assert re.search(r"Moved [1-3] of \d layers", said) and "Weights rounded to fit layer outputs" in said
    assert f"tried on {TEXTS - 1} samples" in said
    figure = re.search(r"KL divergence of (\S+) nats a token on 1 held-out sample", said)
    assert figure and float(figure[1]) == pytest.approx(_lost(folder, texts[-1:]), rel=0.02)
    assert (folder / "q.onnx").stat().st_size <= size
    assert _lost(folder, sorted((folder / "others").iterdir())) < plain
    made = (folder / "q.onnx").read_bytes()
    texts[-1].write_bytes(texts[0].read_bytes())
    assert _mixed(folder, size) == 0
    assert _weights(made) == _weights((folder / "q.onnx").read_bytes())


def test_a_tied_head_stays_with_its_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a float table, weights of its own are a second copy of it. Attention has no weights to move."""
    model = onnx.load(folder / "m.onnx")
    head = next(node for node in model.graph.node if node.name == "head")
    head.input[1] = "turned"
    turned = onnx.helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0])
    model.graph.node.insert(list(model.graph.node).index(head), turned)
    del model.graph.initializer[[one.name for one in model.graph.initializer].index("head")]
    onnx.save(model, folder / "m.onnx")
    assert _mixed(folder, 15_600) == 0
    assert re.search(r"Moved [1-3] of 3 layers", capsys.readouterr().out)
    made = onnx.load(folder / "q.onnx").graph.initializer
    assert [tuple(one.dims) for one in made if WORDS in one.dims] == [(WORDS, WIDTH)]


def test_fewer_tokens_than_inputs_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """32 inputs of each layer: 8 texts of 24 tokens are enough, three of 8 are not."""
    words = ["--input", f"{folder}/m.onnx", "--output", f"{folder}/q.onnx", "--config", "W4", "--force"]
    assert quantize.main([*words, "--data", f"{folder}/data"]) == 0
    assert "tokens of samples" not in capsys.readouterr().err
    (folder / "few").mkdir()
    for i in range(4):
        tokens = np.arange(8) * (i + 3) % WORDS
        np.savez(folder / "few" / f"{i}.npz", **feed_of(cached_decoder(), tokens))  # type: ignore[arg-type]
    assert quantize.main([*words, "--data", f"{folder}/few"]) == 0
    said = capsys.readouterr()
    assert "has 24 tokens of samples for 32 inputs, 3 other layers too few as well" in said.err
    assert "on 1 held-out sample" in said.out


@pytest.mark.parametrize("config", ["W4_ADAQUANT", "W2_ADAROUND"])
def test_tuning_few_bits_alone_names_what_is_as_good(
    config: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input", f"{folder}/m.onnx", "--output", f"{folder}/q.onnx", "--data", f"{folder}/data"]
    assert quantize.main([*words, "--config", config]) == 1
    said = capsys.readouterr().err
    assert f"gains nothing over --config {config[:2]} with samples" in said
    assert not (folder / "q.onnx").exists()


def test_a_target_of_the_outputs_does_not_fit_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input", f"{folder}/m.onnx", "--output", f"{folder}/q.onnx", "--data", f"{folder}/data"]
    options = [*MIXED, "--kl-target", "0.05", "--no-time", "--set", "fit_weights=true"]
    assert auto_mixed_precision.main([*words, *options]) == 1
    assert "fit_weights" in capsys.readouterr().err
