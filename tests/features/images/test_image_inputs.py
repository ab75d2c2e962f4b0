"""Images as inputs of models. Oracle: pixels worked out with Pillow and NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transforms import features
from transforms.features.images.image_inputs import images_line, read_image
from transforms.run.array_files import IMAGE_SUFFIXES
from transforms.run.image_options import ImageOptions
from transforms.runtime.inputs import ModelInput


def image_input(*shape: int | None, dtype: type = np.float32) -> ModelInput:
    return ModelInput("image", np.dtype(dtype), shape)


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (5, 6)) -> np.ndarray:
    """Save a random picture of (width, height) and return its pixels."""
    channels = len(mode) if mode != "L" else 1
    pixels = np.random.default_rng(2).integers(0, 256, (size[1], size[0], channels), np.uint8)
    Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels, mode).save(path)
    return pixels


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

    own = ImageOptions(transform=_transform)
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
    assert images_line([tmp_path / "p.png"], image_input(*shape), options) == line


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


def test_suffixes_of_images_open_the_feature() -> None:
    assert set(features.FEATURES["images"]) == {*IMAGE_SUFFIXES}
    found = [features.files_of(Path(f"a{suffix}")) for suffix in (".PNG", ".npy", "")]
    assert found[0] is not None and found[0].read is read_image and found[1:] == [None, None]
