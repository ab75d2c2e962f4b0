"""Oracle: the arrays that were saved, and pixels worked out with Pillow and NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transforms.run.image_inputs import ImageOptions, read_image
from transforms.run.image_transform import ImageTransform
from transforms.run.samples import Samples
from transforms.runtime.inputs import ModelInput

X = ModelInput("x", np.dtype(np.float32), (None, 2))
IDS = ModelInput("ids", np.dtype(np.int64), (1, None))


def image_input(*shape: int | None, dtype: type = np.float32) -> ModelInput:
    return ModelInput("image", np.dtype(dtype), shape)


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (5, 6)) -> np.ndarray:
    """Save a random picture of (width, height) and return its pixels."""
    channels = len(mode) if mode != "L" else 1
    pixels = np.random.default_rng(2).integers(0, 256, (size[1], size[0], channels), np.uint8)
    Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels, mode).save(path)
    return pixels


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


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_layouts_and_channels(tmp_path: Path, mode: str, channels: int, layout: str) -> None:
    pixels = picture(tmp_path / "p.png", mode)
    shape = (1, channels, 6, 5) if layout == "NCHW" else (1, 6, 5, channels)
    found = read_image(tmp_path / "p.png", image_input(*shape), ImageOptions())
    wanted = pixels.transpose(2, 0, 1) if layout == "NCHW" else pixels
    assert found.shape == shape and found.dtype == np.float32 and np.array_equal(found[0], wanted)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_of_16_bits_is_scaled_to_0_to_255(tmp_path: Path, suffix: str, channels: int) -> None:
    """Every number of 16 bits, rounded to the nearest of 8; a PNG, and a TIFF with the last byte first."""
    grey = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    order = "<" if suffix == "png" else ">"
    Image.fromarray(grey.astype(f"{order}u2")).save(tmp_path / f"p.{suffix}")
    path = (tmp_path / f"p.{suffix}").rename(tmp_path / "p.png")
    wanted = np.round(grey / 65535 * 255)
    seen: list[np.ndarray] = []

    def _transform(image: Image.Image) -> np.ndarray:
        seen.append(np.asarray(image))
        return np.zeros((channels, 256, 256), np.float32)

    own = ImageOptions(transform=ImageTransform(function=_transform))
    found = read_image(path, image_input(1, channels, 256, 256), ImageOptions())
    read_image(path, image_input(1, channels, 256, 256), own)
    for one in (*found[0], *seen[0].reshape(256, 256, channels).transpose(2, 0, 1)):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.uint8, np.int64])
def test_type_of_the_input(tmp_path: Path, dtype: type) -> None:
    pixels = picture(tmp_path / "p.png")
    found = read_image(tmp_path / "p.png", image_input(1, 6, 5, 3, dtype=dtype), ImageOptions())
    assert found.dtype == dtype and np.array_equal(found[0], pixels)


def test_mean_and_std_per_channel(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "p.png").astype(np.float32)
    options = ImageOptions(mean=(1, 2, 3), std=(4, 5, 6))
    found = read_image(tmp_path / "p.png", image_input(1, 3, 6, 5), options)
    for channel, (mean, std) in enumerate(zip((1, 2, 3), (4, 5, 6), strict=True)):
        assert np.array_equal(found[0, channel], (pixels[..., channel] - np.float32(mean)) / np.float32(std))


@pytest.mark.parametrize("name", ["mean", "std"])
def test_wrong_number_of_channel_figures(tmp_path: Path, name: str) -> None:
    picture(tmp_path / "p.png")
    with pytest.raises(ValueError, match=f"2 numbers of {name} for the 3 channels of 'image'"):
        read_image(tmp_path / "p.png", image_input(1, 3, 6, 5), ImageOptions(**{name: (1.0, 2.0)}))


def test_size_option_beats_the_input(tmp_path: Path) -> None:
    picture(tmp_path / "p.png")
    found = read_image(tmp_path / "p.png", image_input(1, 3, 6, 5), ImageOptions(size=(2, 3)))
    assert found.shape == (1, 3, 2, 3), "and the feed is then refused, naming both shapes"


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
    ("shape", "options", "line"),
    [
        ((None, 3, 6, 5), ImageOptions(), "Images: 1 of 6x5, RGB, pixel = 0.00 to 255.00"),
        (
            (1, 8, 8, 3),
            ImageOptions(mean=(127.5,), std=(127.5,)),
            "Images: 1 of 8x8, RGB, (pixel - 127.5) / 127.5 = -1.00 to 1.00",
        ),
        (
            (1, 3, None, None),
            ImageOptions(mean=(100.0, 50.0, 0.0), std=(1.0, 1.0, 2.0)),
            "Images: 1 of own sizes, RGB, (pixel - 100, 50, 0) / 1, 1, 2 = -100.00 to 205.00",
        ),
        ((None, 1, 6, 5), ImageOptions(std=(255.0,)), "Images: 1 of 6x5, grey, pixel / 255 = 0.00 to 1.00"),
        ((None, 1, 6, 5), ImageOptions(mean=(5.0,)), "Images: 1 of 6x5, grey, pixel - 5 = -5.00 to 250.00"),
        ((None, 1, 6, 5), ImageOptions(size=(2, 3)), "Images: 1 of 2x3, grey, pixel = 0.00 to 255.00"),
    ],
)
def test_a_line_tells_how_images_go_in(
    shape: tuple[int | None, ...], options: ImageOptions, line: str, tmp_path: Path
) -> None:
    """Oracle: the formula by hand for pixels of 0 and 255."""
    picture(tmp_path / "p.png")
    assert Samples(tmp_path, [ModelInput("x", np.dtype("float32"), shape)], options).images_line() == line


def test_half_fixed_size_keeps_the_image(tmp_path: Path) -> None:
    picture(tmp_path / "p.png")
    assert read_image(tmp_path / "p.png", image_input(1, 3, None, None), ImageOptions()).shape == (1, 3, 6, 5)


def test_channels_that_are_free_become_rgb(tmp_path: Path) -> None:
    picture(tmp_path / "p.png", "L")
    found = read_image(tmp_path / "p.png", image_input(None, None, None, None), ImageOptions(layout="NHWC"))
    assert found.shape == (1, 6, 5, 3)


@pytest.mark.parametrize(
    ("shape", "layout", "message"),
    [
        ((1, 10), None, r"input 'image' of shape \[1, 10\] is not an image of 1, 3 or 4 channels"),
        ((1, 10), "NCHW", "input 'image' of rank 2 is not an image"),
        ((1, 64, 4, 5), None, r"input 'image' of shape \[1, 64, 4, 5\] is not an image"),
        ((1, 64, 4, 5), "NCHW", "input 'image' has 64 channels in layout NCHW"),
        ((1, 3, 4, 5), "NHWC", "input 'image' has 5 channels in layout NHWC"),
    ],
)
def test_inputs_that_are_no_images(tmp_path: Path, shape: tuple, layout: str | None, message: str) -> None:
    picture(tmp_path / "p.png")
    with pytest.raises(ValueError, match=rf"sample 'p\.png': {message}"):
        read_image(tmp_path / "p.png", image_input(*shape), ImageOptions(layout=layout))


@pytest.mark.parametrize(
    "options", [ImageOptions((8, 8)), ImageOptions(mean=(1.0,)), ImageOptions(layout="NCHW")]
)
def test_image_options_without_an_image(tmp_path: Path, options: ImageOptions) -> None:
    np.save(tmp_path / "a.npy", np.float32([[1, 2]]))
    with pytest.raises(ValueError, match="holds no image"):
        Samples(tmp_path, [X], options)
    picture(tmp_path / "b.png")
    assert len(Samples(tmp_path, [X], options)) == 2
