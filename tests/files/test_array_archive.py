"""Archives of arrays under any name. Oracle: the arrays that were written, and NumPy's own reader."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from transforms.files.array_archive import read_arrays, read_headers, write_arrays
from transforms.run.array_files import read_array

NAMES = ("x", "file", "allow_pickle", "args", "kwds", "a", "a.npy", "in/put:0", "input\\0", "größe")


def test_any_name_is_written_and_read(tmp_path: Path) -> None:
    arrays = {name: np.full((i, 2), i, np.float32) for i, name in enumerate(NAMES)}
    write_arrays(tmp_path / "a.npz", arrays)
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == list(NAMES)
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    assert {name: one.shape for name, one in read_headers(tmp_path / "a.npz").items()} == {
        name: array.shape for name, array in arrays.items()
    }


def test_numpy_reads_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    arrays = {"x": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "n": np.int64(3), "s": np.array(["ab"])}
    write_arrays(tmp_path / "a.npz", arrays)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as written:
        assert all(np.array_equal(written[name], array) for name, array in arrays.items())
    read = read_arrays(tmp_path / "b.npz")
    assert all(np.array_equal(read[name], array) for name, array in arrays.items())


def test_objects_are_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        write_arrays(tmp_path / "a.npz", {"x": np.array([print], object)})
    np.savez(tmp_path / "b.npz", x=np.array([print], object))
    with pytest.raises(ValueError, match="Object arrays are never unpickled, array 'x'"):
        read_arrays(tmp_path / "b.npz")


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.warns(UserWarning):
        for _ in range(2):
            with archive.open("x.npy", "w") as file:
                np.lib.format.write_array(file, np.zeros(1))
    with pytest.raises(ValueError, match="it holds two arrays 'x'"):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_arrays_of_the_other_byte_order_become_native(suffix: str, tmp_path: Path) -> None:
    other = np.arange(6, dtype=">f4")
    path = tmp_path / f"x{suffix}"
    if suffix == ".npz":
        write_arrays(path, {"x": other})
        (array,) = read_arrays(path).values()
    else:
        np.save(path, other)
        array = read_array(path)
    assert array.dtype.isnative and (array == other).all()
