"""Samples of tokens. Oracle: the feed written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transforms.run.feeds import open_feeds
from transforms.run.samples import Samples
from transforms.run.stacked import stacked
from transforms.runtime.inputs import ModelInput

DECODER = (
    ModelInput("input_ids", np.dtype(np.int64), (None, None)),
    ModelInput("attention_mask", np.dtype(np.int64), (None, None)),
    ModelInput("position_ids", np.dtype(np.int32), (None, None)),
    ModelInput("past_key_values.0.key", np.dtype(np.float32), (None, 3, None, 8)),
)


def test_masks_positions_and_empty_caches_follow(tmp_path: Path) -> None:
    np.save(tmp_path / "text.npy", np.array([7, 8, 9], np.int32))
    ((name, feed),) = Samples(tmp_path, DECODER)
    assert name == "text" and list(feed) == [one.name for one in DECODER]
    for key, dtype, value in (
        ("input_ids", np.int64, [[7, 8, 9]]),
        ("attention_mask", np.int64, [[1, 1, 1]]),
        ("position_ids", np.int32, [[0, 1, 2]]),
    ):
        assert feed[key].dtype == dtype and feed[key].tolist() == value
    assert feed["past_key_values.0.key"].shape == (1, 3, 0, 8)


def test_each_row_is_a_text(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    np.save(tmp_path / "b.npy", np.arange(4))
    samples = Samples(tmp_path, DECODER)
    assert samples.names == ["a-1", "a-2", "a-3", "b"] and len(samples) == 4
    assert [feed["input_ids"].tolist() for _, feed in samples] == [
        [[0, 1]],
        [[2, 3]],
        [[4, 5]],
        [[0, 1, 2, 3]],
    ]
    assert Samples(tmp_path, DECODER, limit=2).names == ["a-1", "a-2"]


def test_arrays_in_memory_and_one_file_are_texts_too(tmp_path: Path) -> None:
    """Oracle: the same tokens as files of a folder."""
    texts = np.arange(6).reshape(3, 2)
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d" / "a.npy", texts)
    np.save(tmp_path / "all.npy", texts)
    wanted = [feed for _, feed in Samples(tmp_path / "d", DECODER)]
    for data in (list(texts), stacked(texts), stacked(tmp_path / "all.npy")):
        found = [feed for _, feed in open_feeds(data, DECODER)]
        assert len(found) == 3
        for one, other in zip(found, wanted, strict=True):
            assert (
                all(np.array_equal(one[name], other[name]) for name in other) and one.keys() == other.keys()
            )
    with pytest.raises(ValueError, match="sample 0 has 1 arrays, the model has inputs input_ids"):
        list(open_feeds([np.zeros(3, np.float32)], DECODER))


def test_a_model_of_one_input_takes_arrays_as_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    ((name, feed),) = Samples(tmp_path, DECODER[:1])
    assert name == "a" and feed["input_ids"].shape == (3, 2)


@pytest.mark.parametrize(
    ("tokens", "inputs", "message"),
    [
        (np.zeros(3, np.float32), DECODER, r"float32 \[3\] instead of tokens \[n\] or \[texts, n\]"),
        (
            np.arange(3),
            (*DECODER, ModelInput("pixels", np.dtype(np.float32), (1, 3))),
            "input 'pixels' does not follow from tokens: it takes .npz samples",
        ),
    ],
)
def test_refusals(tokens: np.ndarray, inputs: tuple[ModelInput, ...], message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", tokens)
    with pytest.raises(ValueError, match=f"^'.*a.npy' cannot be read: {message}"):
        list(Samples(tmp_path, inputs))
