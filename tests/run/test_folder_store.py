"""Tensors that processes leave to each other. Oracle: the arrays themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transforms.run.folder_store import FolderStore, read_arrays, write_arrays

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns": np.arange(12, dtype=np.int8).reshape(3, 4).T,
    "part": np.arange(24.0).reshape(2, 3, 4)[:, ::2],
    "none": np.zeros((0, 3), np.uint16),
    "scalar": np.array(7, np.int64),
    "truth": np.array([True, False]),
    "words": np.array(["a", "bcd"]),
    "a name / with \u00e4": np.array([np.nan, -0.0, np.inf]),
}


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_arrays(tmp_path / "file", ARRAYS)
    found = read_arrays(tmp_path / "file")
    assert list(found) == list(ARRAYS) and [path.name for path in tmp_path.iterdir()] == ["file"]
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
        assert found[name].ctypes.data % 64 == 0 or not array.size


def test_another_process_finds_what_was_committed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "tensors", 2)
    for sample in range(3):
        for name, array in ARRAYS.items():
            store.put(sample, name, array)
    with pytest.raises(FileNotFoundError):
        FolderStore(tmp_path / "tensors", 2).get(0, "matrix")
    store.commit()
    other = FolderStore(tmp_path / "tensors", 2)
    for sample in range(3):
        assert np.array_equal(other.get(sample, "part"), ARRAYS["part"])
    assert len(list((tmp_path / "tensors").iterdir())) == 2 * len(ARRAYS)


def test_dropped_tensors_take_no_room(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "tensors", 2)
    for committed in (False, True):
        for sample in range(3):
            store.put(sample, "x", np.full(2, sample))
        if committed:
            store.commit()
        for sample in range(3):
            store.drop(sample, "x")
            store.drop(sample, "not there")
        assert not list((tmp_path / "tensors").iterdir())
    for value in (1, 2):  # after that they may be put there again
        store.put(0, "x", np.array(value))
        store.commit()
        assert store.get(0, "x") == value


def test_types_that_numpy_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sample 3, tensor 'words': workers cannot take object"):
        FolderStore(tmp_path / "tensors", 2).put(3, "words", np.array(["a"], object))
