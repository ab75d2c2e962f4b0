"""Images as inputs of a model: their size, channels, layout and numeric range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transforms.features.images.image_transform import name_of, transformed
from transforms.files.named_file import named
from transforms.run.array_files import open_image
from transforms.run.image_options import ImageOptions
from transforms.runtime.inputs import ModelInput

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}

_STEP = 65535 // 255
"""Factor from 8 bits to 16 bits."""


def images_line(paths: Sequence[Path], wanted: ModelInput, options: ImageOptions) -> str:
    """Return a line on the images: how many, of which size, and how pixels are scaled.

    Raises ValueError as :func:`read_image` does for an input that is not an image.
    """
    if options.transform is not None:
        first = read_image(paths[0], wanted, options)
        shape, reach = "x".join(map(str, first.shape[1:])), f"{first.min():.2f} to {first.max():.2f}"
        return f"Images: {len(paths)} by {name_of(options.transform)}, {shape}, the first = {reach}"
    layout = options.layout or _layout(wanted, paths[0])
    height, width, channels = _image_shape(wanted, layout, paths[0])
    height, width = options.size or (height, width)
    sizes = "own sizes" if None in (height, width) else f"{height}x{width}"
    means, scales = _of_channels(options, channels)
    bounds = [(pixel - m) / s for pixel in (0, 255) for m, s in zip(means, scales, strict=True)]
    reach = f"{min(bounds):.2f} to {max(bounds):.2f}"
    colours = _MODES[channels] if channels > 1 else "grey"
    return f"Images: {len(paths)} of {sizes}, {colours}, {formula(options)} = {reach}"


def formula(options: ImageOptions) -> str:
    """Return the scaling of pixels in words: ``(pixel - 127.5) / 127.5``."""
    shift, scale = (", ".join(f"{x:g}" for x in numbers) for numbers in (options.mean, options.std))
    shifted = "pixel" if shift == "0" else f"(pixel - {shift})"
    return shifted.strip("()") if scale == "1" else f"{shifted} / {scale}"


def read_image(path: Path, wanted: ModelInput, options: ImageOptions) -> np.ndarray:
    """Return an image file as a batch of one image, in the type of the model's input.

    Grey, RGB or RGBA as the input has 1, 3 or 4 channels, resized (bilinear) unless it has the size already.
    Grey of 16 bits becomes 8 bits, 65535 white.
    Raises ValueError, naming the file, when the input is not an image or its size must be given.
    """
    from PIL import Image

    if options.transform is not None:
        with named(path), open_image(path) as image:
            picture = _in_8_bits(image).convert(_mode(wanted))
        return transformed(picture, options.transform, wanted, path.name)
    layout = options.layout or _layout(wanted, path)
    height, width, channels = _image_shape(wanted, layout, path)
    height, width = options.size or (height, width)
    with named(path), open_image(path) as image:
        picture = _in_8_bits(image).convert(_MODES[channels])
    if height and width and picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    pixels: np.ndarray = np.asarray(picture, np.float32).reshape(picture.height, picture.width, channels)
    for name, numbers in (("mean", options.mean), ("std", options.std)):
        if len(numbers) not in (1, channels):
            raise ValueError(
                f"{len(numbers)} numbers of {name} for the {channels} channels of '{wanted.name}'"
            )
    pixels = pixels - np.array(options.mean, np.float32)
    pixels /= np.array(options.std, np.float32)
    batch = pixels[None] if layout == "NHWC" else np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
    return batch.astype(wanted.dtype)


def _in_8_bits(image: Image) -> Image:
    """Return an image with 16-bit grey scaled to 0 to 255: Pillow would clip all values above 255 to white.

    Older versions of Pillow read such a PNG, which has no more bits, as 32-bit integers.
    """
    if not (image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")):
        return image
    from PIL import Image

    wide = np.asarray(image).astype(np.uint32)
    return Image.fromarray(((wide + _STEP // 2) // _STEP).astype(np.uint8))


def _mode(wanted: ModelInput) -> str:
    """Return the mode of images for an input of any layout, by its channels; RGB if they are unknown."""
    places = wanted.shape[1::2] if len(wanted.shape) == 4 else wanted.shape[:1]
    return next((_MODES[size] for size in places if size in _MODES), "RGB")


def _layout(wanted: ModelInput, path: Path) -> str:
    if len(wanted.shape) == 4:
        if wanted.shape[1] in _MODES:
            return "NCHW"
        if wanted.shape[3] in _MODES:
            return "NHWC"
    shape = ["?" if size is None else size for size in wanted.shape]
    raise ValueError(
        f"sample '{path.name}': input '{wanted.name}' of shape {shape} is not an image of 1, 3 or 4 channels"
    )


def _image_shape(wanted: ModelInput, layout: str, path: Path) -> tuple[int | None, int | None, int]:
    """Return height, width and channels that the input requires; None where it takes any size."""
    if len(wanted.shape) != 4:
        raise ValueError(
            f"sample '{path.name}': input '{wanted.name}' of rank {len(wanted.shape)} is not an image"
        )
    _, first, second, third = wanted.shape
    height, width, channels = (first, second, third) if layout == "NHWC" else (second, third, first)
    channels = 3 if channels is None else channels
    if channels not in _MODES:
        raise ValueError(
            f"sample '{path.name}': input '{wanted.name}' has {channels} channels in layout {layout}"
        )
    return height, width, channels


def _of_channels(options: ImageOptions, channels: int) -> tuple[list[float], list[float]]:
    """Return the mean and the scale of each channel."""
    mean, std = (list(numbers) for numbers in (options.mean, options.std))
    return mean * (channels if len(mean) == 1 else 1), std * (channels if len(std) == 1 else 1)
