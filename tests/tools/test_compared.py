"""Outputs are compared when nothing changes the model any more. Oracle: the written file on the samples."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers.cached_decoder import cached_decoder, save_samples
from tests.tools.test_kv_cache import divergence
from tools import quantize

COUNT = 4


def said_and_measured(
    folder: Path, capsys: pytest.CaptureFixture[str], *options: str, judged: int = COUNT
) -> tuple[float, float]:
    """Return the divergence that a quantization says, and that of its file, on the last texts."""
    model = cached_decoder()
    onnx.save(model, folder / "m.onnx")
    if not (folder / "data").exists():
        save_samples(model, folder / "data", COUNT)
    words = ["--input", f"{folder}/m.onnx", "--output", f"{folder}/q.onnx", "--data", f"{folder}/data"]
    assert quantize.main([*words, "--no-time", "--force", *options]) == 0
    figure = re.search(r"Outputs: KL divergence of (\S+) nats", capsys.readouterr().out)
    assert figure
    sessions = [onnxruntime.InferenceSession(folder / name) for name in ("m.onnx", "q.onnx")]
    feeds = [dict(np.load(path)) for path in sorted((folder / "data").iterdir())[-judged:]]
    pairs = [[one.run(["logits"], feed)[0].astype(np.float64) for one in sessions] for feed in feeds]
    return float(figure[1]), float(np.mean([divergence(*pair) for pair in pairs]))


def test_inputs_that_kernels_round_and_stored_embeddings_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--config", "W8", "--set", "block_size=32", "--matmul-nbits", "--accuracy-level"
    fine, coarse, few = (
        said_and_measured(tmp_path, capsys, *options, *more)
        for more in (["1"], ["4"], ["1", "--embeddings", "int4"])
    )
    assert all(np.isclose(*pair, rtol=0.02) for pair in (fine, coarse, few))
    assert coarse[0] > 1.5 * fine[0] and few[0] > 1.5 * coarse[0]


def test_tuned_weights_that_become_another_operator_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last text is spared from tuning."""
    options = "--config", "W8_ADAQUANT", "--set", "block_size=32", "--matmul-nbits", "--accuracy-level", "1"
    assert np.isclose(*said_and_measured(tmp_path, capsys, *options, judged=1), rtol=0.02)


def test_another_form_of_the_same_numbers_is_compared_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = []
    for storage in ("plain", "packed"):
        model = cached_decoder()
        onnx.save(model, tmp_path / "m.onnx")
        if not (tmp_path / "data").exists():
            save_samples(model, tmp_path / "data", COUNT)
        words = ["--input", f"{tmp_path}/m.onnx", "--output", f"{tmp_path}/q.onnx", "--storage", storage]
        words += ["--data", f"{tmp_path}/data", "--no-time", "--force", "--config", "MXFP8E4M3"]
        assert quantize.main(words) == 0
        figures += re.findall(r"Outputs: KL divergence of (\S+) nats", capsys.readouterr().out)
    assert len(figures) == 2 and len(set(figures)) == 1
