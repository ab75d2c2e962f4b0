"""Samples that are sequences, run once by the float model: each step becomes a sample, with its states."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onnx_narrow.api.sources import write_samples
from transforms.graph.some_names import counted, some_names
from transforms.pipelines.source import Source
from transforms.run.events import Events, each_told
from transforms.run.sequences import Sequences
from transforms.runtime.session import OpenModel

if TYPE_CHECKING:
    from onnx_narrow.api.samples import SampleOptions

_SHOWN = 4  # states


def unrolled(options: SampleOptions, data: Path, source: Source, folder: Path, events: Events) -> None:
    """Run the sequences in the folder ``data``, and write each step to another.

    States are those of the float model. Raises ValueError or OSError for sequences that do not fit it.
    """
    sequences = sequences_of(options, data, source, source.open(options.run))
    progressing = each_told(sequences, events.phase("unrolling", "sequence"), len(sequences))
    count = write_samples(((step.name, step.feed) for _, steps in progressing for step in steps), folder)
    events.note(steps_line(sequences, count))


def sequences_of(options: SampleOptions, data: Path, source: Source, model: OpenModel) -> Sequences:
    """Return the sequences in the folder ``data``, to be run by a model."""
    return Sequences(model, source.load(), data, options.images, options.limit, options.states)


def steps_line(sequences: Sequences, steps: int) -> str:
    """Return the line on the sequences that were run: their length, and the states that were fed back."""
    pairs = [f"{back} to {fed}" for fed, back in sequences.states.items()]
    more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    count = counted(len(sequences), "sequence")
    not_fed_back = (
        f"; not fed back, as the samples hold it: {some_names([*sequences.unfed])}" if sequences.unfed else ""
    )
    return (
        f"Ran {count} of {counted(steps, 'step')}, fed back: {', '.join(pairs[:_SHOWN])}{more}{not_fed_back}"
    )
