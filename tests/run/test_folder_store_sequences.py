"""Oracle: what was put in."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from transforms.run.folder_store import FolderStore


def test_sequences_come_back_with_their_length(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, 2)
    values = [[np.arange(3), np.zeros((2, 0), np.float32)], []]
    for sample, value in enumerate(values):
        store.put(sample, "s", value)
        store.put(sample, "t", np.full(2, sample))
    store.commit()
    for sample, value in enumerate(values):
        found = store.get(sample, "s")
        assert isinstance(found, list) and len(found) == len(value)
        assert all(
            np.array_equal(*pair) and pair[0].dtype == pair[1].dtype
            for pair in zip(found, value, strict=True)
        )
        assert np.array_equal(store.get(sample, "t"), np.full(2, sample))
