"""Samples that are sequences, run once by the float model: each step becomes a sample, with its states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tools.cli.fed import fed, of_arrays, save_sample
from tools.cli.job_options import DataOptions
from tools.cli.progress import Progress
from tools.cli.said import say
from transforms import model_io
from transforms.files.cleanup import temporary_folder
from transforms.graph.some_names import counted, some_names

if TYPE_CHECKING:
    from transforms.run.run_model import OpenModel
    from transforms.run.sequences import Sequences

J = TypeVar("J", bound=DataOptions)

_SHOWN = 4  # states


@contextmanager
def unrolled(job: J, float_model: str | Path) -> Iterator[J]:
    """Yield a job whose samples are single ones: those that it has, with what an encoder feeds, or steps.

    States are those of the float model. Raises ValueError or OSError for sequences that do not fit it.
    """
    if not job.sequences or job.data is None:
        with fed(job, float_model) as whole:
            yield whole
        return
    from transforms.run.run_model import open_model

    found = sequences_of(job, job.data, float_model, open_model(Path(float_model), job.run))
    with temporary_folder() as folder:
        count = 0
        with Progress("unrolling", "sequence") as bar:
            for _, steps in bar.each(found, len(found)):
                for step in steps:
                    save_sample(folder, step.name, step.feed)
                    count += 1
        say(steps_line(found, count))
        yield replace(of_arrays(job, folder), sequences=False)


def sequences_of(job: DataOptions, data: Path, path: str | Path, model: OpenModel) -> Sequences:
    """Return the sequences of a job in the folder ``data``, to be run by the model that ``path`` holds."""
    from transforms.run.sequences import Sequences

    return Sequences(model, model_io.load(path), data, job.images, job.limit, dict(job.states))


def steps_line(found: Sequences, steps: int) -> str:
    """Return the line on sequences that were run: how long they are, and what was fed back."""
    pairs = [f"{back} to {fed}" for fed, back in found.states.items()]
    more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    sequences = counted(len(found), "sequence")
    kept = f"; not fed back, as the samples hold it: {some_names([*found.unfed])}" if found.unfed else ""
    return f"Ran {sequences} of {counted(steps, 'step')}, fed back: {', '.join(pairs[:_SHOWN])}{more}{kept}"
