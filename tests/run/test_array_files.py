"""Oracle: the arrays that were saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, integer_dtypes
from PIL import Image

from transforms.run.array_files import find_files, find_litter, natural_order, read_array


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"")


def test_finds_by_suffix_in_any_letter_case(tmp_path: Path) -> None:
    touch(tmp_path, "a.npy", "B.PNG", "c.JpEg", "d.jpg", "e.txt", "npy")
    assert list(find_files(tmp_path)) == ["B.png", "a.npy", "c.jpeg", "d.jpg"]


def test_names_keep_their_dots(tmp_path: Path) -> None:
    touch(tmp_path, "frame.0.npy", "frame.1.NPY")
    found = find_files(tmp_path)
    assert list(found) == ["frame.0.npy", "frame.1.npy"]
    assert found["frame.1.npy"] == tmp_path / "frame.1.NPY"


def test_other_suffixes(tmp_path: Path) -> None:
    touch(tmp_path, "a.npy", "a.npz")
    assert list(find_files(tmp_path, [".npz"])) == ["a.npz"]


def test_litter_of_operating_systems_is_no_file(tmp_path: Path) -> None:
    litter = ["._a.npy", "._B.PNG", ".DS_Store", "THUMBS.DB", "Desktop.ini", "Icon\r", "__MACOSX", "@eaDir"]
    touch(tmp_path, "a.npy", "_a.npy", ".hidden.npy", "desktop.npy", *litter)
    assert set(find_files(tmp_path)) == {"a.npy", "_a.npy", ".hidden.npy", "desktop.npy"}
    assert find_litter(tmp_path) == sorted(litter)
    assert find_litter(tmp_path / "none") == []


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        find_files(tmp_path / "none")
    touch(tmp_path, "file")
    with pytest.raises(NotADirectoryError):
        find_files(tmp_path / "file")


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_numbers_sort_by_value(numbers: list[int]) -> None:
    names = sorted((f"s{number}.npy" for number in numbers), key=natural_order)
    assert names == [f"s{number}.npy" for number in sorted(numbers)]


@given(st.lists(st.text(max_size=6)))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural_order)) == sorted(names)


@given(arrays(integer_dtypes(endianness="?"), array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3)))
def test_npy_comes_back(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npy"
    np.save(path, array)
    assert np.array_equal(read_array(path), array)


def test_fortran_order(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.save(tmp_path / "a.npy", array)
    assert np.array_equal(read_array(tmp_path / "a.npy"), array)


@pytest.mark.parametrize(
    ("mode", "shape", "kind"), [("I", (2, 3), "i"), ("F", (2, 3), "f"), ("CMYK", (2, 3, 3), "u")]
)
def test_rarer_images(tmp_path: Path, mode: str, shape: tuple[int, ...], kind: str) -> None:
    path = tmp_path / "a.png"
    Image.new(mode, (3, 2)).save(path, {"CMYK": "JPEG"}.get(mode, "TIFF"))
    array = read_array(path)
    assert array.shape == shape and array.dtype.kind == kind


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    for name in ("a.npy", "a.png"):
        with pytest.raises(FileNotFoundError):
            read_array(tmp_path / name)


def test_archive_in_the_guise_of_npy(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(2))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(ValueError, match=r"a\.npy' cannot be read"):
        read_array(tmp_path / "a.npy")
