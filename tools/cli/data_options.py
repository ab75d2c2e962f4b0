"""Options of the tools that run models on data: which samples, and how."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.cli.command_line import Parser
from tools.cli.job_options import DataOptions
from tools.cli.needs import Need
from tools.cli.option_values import MOST_AT_ONCE, number, numbers, size, whole

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

    from transforms.run.feeds import Feeds

SAMPLES_HELP = """\
samples: .npz files with one array per input name; .npy files, for models with one input, with the array as
the model takes it (batch dimension included); .png, .jpg and .jpeg files, for models with one image input.

images become (pixel - mean) / std, with pixels from 0 to 255, in a batch of one:
  --mean 127.5 --std 127.5                                    -1..1, for MobileNet
  --std 255                                                   0..1
  --mean 123.675,116.28,103.53 --std 58.395,57.12,57.375      for torchvision's networks
Size, channels and layout follow from the shape of the model's input if it is fixed."""


def add_data_options(
    parser: Parser,
    *,
    aliases: Sequence[str] = (),
    limit_aliases: Sequence[str] = (),
    required: bool = True,
    help: str = "folder of samples",
    needs: tuple[Need, ...] = (),
    of_samples: tuple[Need, ...] = (),
    of_run: tuple[Need, ...] = (),
) -> None:
    """Add the options that say which samples are run, and how, with older spellings of two of them.

    ``needs``: of the folder; ``of_samples`` and ``of_run``: of the options that say how it is read, and run.
    """
    parser.add_argument(
        "--data", *aliases, required=required, type=Path, metavar="DIR", needs=needs, help=help
    )
    parser.add_argument(
        "--limit",
        *limit_aliases,
        type=whole(),
        metavar="N",
        needs=of_samples,
        help="run only the first N samples",
    )
    parser.add_argument(
        "--provider", default="cpu", needs=of_run, help="execution provider of ONNX Runtime (default: cpu)"
    )
    parser.add_argument(
        "--threads",
        type=whole(1, MOST_AT_ONCE),
        default=0,
        metavar="N",
        needs=of_run,
        help="threads (default: all cores)",
    )
    parser.add_argument(
        "--image-size",
        type=size,
        metavar="HxW",
        needs=of_samples,
        help="resize images to this size; one number for a square",
    )
    parser.add_argument(
        "--mean",
        type=numbers(number()),
        default=(0.0,),
        metavar="X[,X,X]",
        needs=of_samples,
        help="of image channels (default: 0)",
    )
    parser.add_argument(
        "--std",
        type=numbers(number(0, above=True)),
        default=(1.0,),
        metavar="X[,X,X]",
        needs=of_samples,
        help="of image channels (default: 1)",
    )
    parser.add_argument(
        "--layout",
        type=str.upper,
        choices=("NCHW", "NHWC"),
        needs=of_samples,
        help="dimensions of image inputs",
    )


def open_samples(job: DataOptions, graph: gs.Graph) -> Feeds:
    """Return the samples of ``--data`` as inputs of a graph, and report the files that are skipped."""
    from transforms.run.feeds import open_feeds
    from transforms.runtime.inputs import model_inputs

    assert job.data is not None, "asked for before"
    report_litter(job.data)
    return open_feeds(job.data, model_inputs(graph), images=job.images, limit=job.limit)


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
