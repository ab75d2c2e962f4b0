"""Options of the tools that run models on data: which samples, and how."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.cli.option_values import MOST_AT_ONCE, number, numbers, size, whole

if TYPE_CHECKING:
    from transforms.run.samples import ImageOptions

SAMPLES_HELP = """\
samples: .npz files with one array per input name; .npy files, for models with one input, with the array as
the model takes it (batch dimension included); .png, .jpg and .jpeg files, for models with one image input.

images become (pixel - mean) / std, pixels counting from 0 to 255, a batch of one:
  --mean 127.5 --std 127.5                                    -1..1, as MobileNet wants it
  --std 255                                                   0..1
  --mean 123.675,116.28,103.53 --std 58.395,57.12,57.375      as torchvision's networks want it
Size, channels and layout follow from the model's input where its shape is fixed."""


OF_SAMPLES = ("limit", "image_size", "mean", "std", "layout")
OF_DATA = (*OF_SAMPLES, "provider", "threads")
"""What :func:`add_data_options` adds beside the folder: options that do nothing without samples, or a run."""


def add_data_options(
    parser: argparse.ArgumentParser,
    *,
    aliases: Sequence[str] = (),
    limit_aliases: Sequence[str] = (),
    required: bool = True,
    help: str = "folder of samples",
) -> None:
    """Add the options that say which samples are run, and how, with older spellings of two of them."""
    parser.add_argument("--data", *aliases, required=required, type=Path, metavar="DIR", help=help)
    parser.add_argument(
        "--limit", *limit_aliases, type=whole(), metavar="N", help="run only the first N samples"
    )
    parser.add_argument("--provider", default="cpu", help="execution provider of ONNX Runtime (default: cpu)")
    parser.add_argument(
        "--threads", type=whole(1, MOST_AT_ONCE), default=0, metavar="N", help="threads (default: all cores)"
    )
    parser.add_argument(
        "--image-size", type=size, metavar="HxW", help="resize images to this size, one number for squares"
    )
    parser.add_argument(
        "--mean", type=numbers(number()), default=(0.0,), metavar="X[,X,X]", help="for images, 0 unless given"
    )
    parser.add_argument(
        "--std",
        type=numbers(number(0, above=True)),
        default=(1.0,),
        metavar="X[,X,X]",
        help="for images, 1 unless given",
    )
    parser.add_argument(
        "--layout", type=str.upper, choices=("NCHW", "NHWC"), help="dimensions of image inputs"
    )


def image_options(options: argparse.Namespace) -> ImageOptions:
    """Return the image options among those of ``add_data_options``."""
    from transforms.run.samples import ImageOptions

    return ImageOptions(options.image_size, options.mean, options.std, options.layout)


def report_litter(*folders: Path | None) -> None:
    """Say on stderr, one line for each folder, what in it is skipped as left there by operating systems."""
    from transforms.run.array_files import find_litter

    for folder in filter(None, folders):
        names = find_litter(folder)
        if names:
            files = "1 file" if len(names) == 1 else f"{len(names)} files"
            print(
                f"Skipped in '{folder}': {files} of operating systems, such as {names[0]!r}", file=sys.stderr
            )
