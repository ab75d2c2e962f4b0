"""MiniLM with ranges of rows at run time, on sentences that decided nothing. Oracle: the float model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import onnx_narrow
from tests.helpers import real_models

NAME = "minilm_l6_op13"

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(NAME not in real_models.NAMES, reason="no real models beside the project"),
]


def decibels(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    error = np.square(expected - found, dtype=np.float64).sum()
    return float(10 * np.log10(np.square(expected, dtype=np.float64).sum() / max(error, 1e-30)))


def test_sentences_are_near_the_float_model_and_the_same_alone_and_in_a_padded_batch(tmp_path: Path) -> None:
    path = real_models.MODELS / NAME / "model.onnx"
    made = tmp_path / "m.onnx"
    onnx_narrow.quantize(path, made, config="A8W8_DYNAMIC", time=False)
    assert made.stat().st_size < 0.275 * path.stat().st_size
    base, other = (real_models.session(one, optimized=True) for one in (path, made))
    feed = {name: array[:20] for name, array in real_models.task(NAME).feeds[0].items()}
    lengths = feed["attention_mask"].sum(1)
    assert len(set(lengths)) > 1
    expected, together = (np.asarray(session.run(None, feed)[0]) for session in (base, other))
    rows = [(array[: int(length)]) for array, length in zip(together, lengths, strict=True)]
    exact = [(array[: int(length)]) for array, length in zip(expected, lengths, strict=True)]
    alone = [
        other.run(None, {name: array[i : i + 1, : int(length)] for name, array in feed.items()})[0][0]
        for i, length in enumerate(lengths)
    ]
    assert decibels(np.concatenate(exact), np.concatenate(rows)) > 26
    assert decibels(np.concatenate(alone), np.concatenate(rows)) > 40
