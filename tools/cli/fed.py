"""Samples of which an encoder makes a part, written once with that part, for all that reads samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ops.array_types import Feed
from tools.cli.job_options import DataOptions
from tools.cli.progress import Progress
from tools.cli.said import say
from transforms.files.array_archive import write_arrays
from transforms.files.cleanup import temporary_folder
from transforms.graph.some_names import counted

if TYPE_CHECKING:
    from transforms.runtime.session import OpenModel

J = TypeVar("J", bound=DataOptions)


@contextmanager
def fed(job: J, model: str | Path) -> Iterator[J]:
    """Yield a job whose samples are whole: those that it has, or with what the encoder makes.

    ``model``: whose inputs they are for. Raises ValueError or OSError for samples that do not fit.
    """
    if job.feeds_from is None or job.data is None:
        yield job
        return
    from transforms.run.fed_samples import FedSamples, fed_inputs
    from transforms.run.run_model import open_model

    encoder, inputs = open_model(job.feeds_from, job.run), open_model(Path(model), job.run).inputs
    pairs = fed_inputs(inputs, encoder, dict(job.feeds))
    if not pairs:
        raise ValueError(_why_none(encoder, job.feeds_from, [one.name for one in inputs]))
    folder = encoder_samples(job.data, job.feeds_from)
    found = FedSamples(inputs, job.data, encoder, folder, pairs, job.images, job.limit)
    with temporary_folder() as whole:
        with Progress("encoding", "sample") as bar:
            for name, feed in bar.each(found, len(found)):
                save_sample(whole, name, feed)
        words = ", ".join(name if name == made else f"{made} to {name}" for name, made in pairs.items())
        say(f"Ran '{job.feeds_from}' on {counted(len(found), 'sample')}, fed: {words}")
        yield replace(of_arrays(job, whole), feeds_from=None, feeds=())


def save_sample(folder: Path, name: str, feed: Feed) -> None:
    """Write a whole sample as arrays."""
    write_arrays(folder / f"{name}.npz", feed)


def of_arrays(job: J, folder: Path) -> J:
    """Return a job on all samples of a folder of arrays: what changes images was done before."""
    return replace(job, data=folder, limit=None, image_size=None, mean=(0.0,), std=(1.0,), layout=None)


def encoder_samples(data: Path, encoder: Path) -> Path:
    """Return the folder of an encoder's samples: of its name, in that of the decoder's or beside it.

    Raises FileNotFoundError where there is none.
    """
    folders = [data / encoder.stem, data.parent / encoder.stem]
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        raise FileNotFoundError(f"there are no samples of '{encoder}': no folder '{folders[0]}' or beside it")
    return found


def _why_none(encoder: OpenModel, path: Path, names: list[str]) -> str:
    return (
        f"no input of the model, {', '.join(names)}, is an output of '{path}', {', '.join(encoder.outputs)}: "
        "name them, --feed OUT=IN"
    )
