"""Options of the tools that run models on data: which samples, and how."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transforms.samples import ImageOptions

SAMPLES_HELP = """\
samples: .npz files with one array per input name; .npy files, for models with one input, with the array as
the model takes it (batch dimension included); .png, .jpg and .jpeg files, for models with one image input.

images become (pixel - mean) / std, pixels counting from 0 to 255, a batch of one:
  --mean 127.5 --std 127.5                                    -1..1, as MobileNet wants it
  --std 255                                                   0..1
  --mean 123.675,116.28,103.53 --std 58.395,57.12,57.375      as torchvision's networks want it
Size, channels and layout follow from the model's input where its shape is fixed."""


def add_data_options(
    parser: argparse.ArgumentParser,
    flag: str = "--data",
    *,
    required: bool = True,
    help: str = "folder of samples",
) -> None:
    """Add the options that say which samples are run, and how; ``flag`` names their folder."""
    parser.add_argument(flag, required=required, type=Path, metavar="DIR", help=help)
    parser.add_argument("--limit", type=count, metavar="N", help="run only the first N samples")
    parser.add_argument("--provider", default="cpu", help="execution provider of ONNX Runtime (default: cpu)")
    parser.add_argument("--threads", type=count, default=0, metavar="N", help="threads (default: all cores)")
    parser.add_argument(
        "--image-size", type=_size, metavar="HxW", help="resize images to this size, one number for squares"
    )
    parser.add_argument(
        "--mean", type=_numbers, default=(0.0,), metavar="X[,X,X]", help="for images, 0 unless given"
    )
    parser.add_argument(
        "--std", type=_scales, default=(1.0,), metavar="X[,X,X]", help="for images, 1 unless given"
    )
    parser.add_argument(
        "--layout", type=str.upper, choices=("NCHW", "NHWC"), help="dimensions of image inputs"
    )


def image_options(options: argparse.Namespace) -> ImageOptions:
    """Return the image options among those of ``add_data_options``."""
    from transforms.samples import ImageOptions

    return ImageOptions(options.image_size, options.mean, options.std, options.layout)


def count(text: str) -> int:
    """Return a number of things, at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    return count(height), count(width or height)


def _numbers(text: str) -> tuple[float, ...]:
    numbers = tuple(float(part) for part in text.split(","))
    if not all(map(math.isfinite, numbers)):
        raise argparse.ArgumentTypeError(f"{text} is not finite")
    return numbers


def _scales(text: str) -> tuple[float, ...]:
    numbers = _numbers(text)
    if 0 in numbers:
        raise argparse.ArgumentTypeError("0 is no standard deviation")
    return numbers
