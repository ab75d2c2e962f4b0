"""Oracle: the arrays that were saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transforms.run.image_options import ImageOptions
from transforms.run.samples import Samples
from transforms.runtime.inputs import ModelInput

X = ModelInput("x", np.dtype(np.float32), (None, 2))
IDS = ModelInput("ids", np.dtype(np.int64), (1, None))


def feeds(
    folder: Path, inputs: Sequence[ModelInput], limit: int | None = None
) -> dict[str, dict[str, np.ndarray]]:
    return dict(Samples(folder, inputs, limit=limit))


def test_npy_feeds_the_only_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32([[1, 2]]))
    assert np.array_equal(feeds(tmp_path, [X])["a"]["x"], [[1, 2]])


def test_npz_feeds_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.array([[7]]), x=np.float32([[1, 2]]))
    feed = feeds(tmp_path, [X, IDS])["a"]
    assert feed.keys() == {"x", "ids"} and feed["ids"] == 7


def test_npz_and_npy_in_one_folder(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.float32([[1, 2]]))
    np.save(tmp_path / "b.npy", np.float32([[3, 4]]))
    assert [feed["x"].tolist() for feed in feeds(tmp_path, [X]).values()] == [[[1, 2]], [[3, 4]]]


def test_other_files_are_no_samples(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32([[1, 2]]))
    (tmp_path / "readme.txt").write_text("nothing")
    (tmp_path / "folder.npy").mkdir()
    assert len(Samples(tmp_path, [X])) == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 4, None])
def test_limit(tmp_path: Path, limit: int | None) -> None:
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.float32([[i, i]]))
    samples = Samples(tmp_path, [X], limit=limit)
    assert len(samples) == len(list(samples)) == min(3, limit or 3)


def test_samples_can_be_read_again(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32([[1, 2]]))
    samples = Samples(tmp_path, [X])
    assert [name for name, _ in samples] == [name for name, _ in samples] == ["a"]


def test_files_are_read_only_when_it_is_their_turn(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.float32([[1, 2]]))
    (tmp_path / "1.npy").write_bytes(b"broken")
    iterator = iter(Samples(tmp_path, [X]))
    assert next(iterator)[0] == "0"
    with pytest.raises(ValueError, match=r"1\.npy' cannot be read"):
        next(iterator)


def test_wrong_samples_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32([1, 2]))
    with pytest.raises(ValueError, match=r"sample 'a\.npy', input 'x': shape \[2\] instead of \[\?, 2\]"):
        feeds(tmp_path, [X])


def test_npy_in_the_guise_of_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32([[1, 2]]))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"a\.npz' cannot be read: it is not a \.npz archive"):
        feeds(tmp_path, [X])


def test_images_may_lie_in_folders_of_classes(tmp_path: Path) -> None:
    """In the order of classes and names; oracle: the pixels."""
    for place, grey in (("dog10/a.png", 40), ("dog2/b.png", 20), ("dog2/a.png", 10)):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        Image.new("L", (2, 2), grey).save(tmp_path / place)
    (tmp_path / "__MACOSX").mkdir()
    samples = Samples(tmp_path, [ModelInput("x", np.dtype("float32"), (None, 1, 2, 2))])
    assert samples.names == ["dog2-a", "dog2-b", "dog10-a"]
    assert [feed["x"].max() for _, feed in samples] == [10, 20, 40]
    assert Samples(tmp_path, samples._inputs, limit=2).names == ["dog2-a", "dog2-b"]


@pytest.mark.parametrize(
    "options", [ImageOptions((8, 8)), ImageOptions(mean=(1.0,)), ImageOptions(layout="NCHW")]
)
def test_image_options_without_an_image(tmp_path: Path, options: ImageOptions) -> None:
    np.save(tmp_path / "a.npy", np.float32([[1, 2]]))
    with pytest.raises(ValueError, match="holds no image"):
        Samples(tmp_path, [X], options)
    Image.new("L", (2, 2)).save(tmp_path / "b.png")
    assert len(Samples(tmp_path, [X], options)) == 2
