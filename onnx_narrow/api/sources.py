"""Models and samples in whatever form a caller has them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnx_narrow.api.result import Result
from ops.array_types import Feed
from transforms import model_io
from transforms.files.array_archive import write_arrays
from transforms.files.paths import AnyPath
from transforms.pipelines.source import Source
from transforms.run.data_sets import Reader, Room, arrays_of, each_sample
from transforms.run.events import SILENT, Events
from transforms.run.feeds import by_name
from transforms.run.fitted import Fitting
from transforms.run.kept_arrays import KeptArrays
from transforms.run.samples import sample_file
from transforms.run.stacked import Stacked, stacked
from transforms.runtime.inputs import ModelInput

Model: TypeAlias = AnyPath | onnx.ModelProto | gs.Graph | Result
"""A model: a path, a proto, a graph, or a result that has one; none of them is ever changed."""

Data: TypeAlias = AnyPath | Reader | Iterable[Any] | Callable[[], Iterable[Any]]
"""Samples: a folder; samples along the first axis of an array, of arrays by input name, or of an .npy or .npz
file; a reader with ``get_next``; an iterable or a sequence; or a callable that makes one.

The last ones give dicts of arrays by input name, arrays for a model with one input, or tuples in the order
of the inputs; labels after them are left out. Arrays are NumPy's, or tensors that convert to such; they are
cast to the type of the input where each number keeps its value, and get a batch of one if they have none. A
sample may be a path (a pathlib.Path, as strings are arrays) of a file as in a folder. The length or ``limit``
says how many are read; without either they have to end within 100,000. They are read once, and kept in
memory; those beyond ``memory_limit``, or 1 GiB, in unnamed files in the temporary folder.
"""

Sample: TypeAlias = dict[str, np.ndarray] | tuple[np.ndarray, ...] | Path

IN_MEMORY = 1 << 30
"""Bytes of samples that are kept in memory without a ``memory_limit``."""


def source_of(model: Model) -> Source:
    """Return the source of a model; TypeError for anything else."""
    if isinstance(model, Result):
        return Source(model.path or model.model)
    if isinstance(model, str | os.PathLike):
        return Source(Path(model))
    return Source(model)


def placed(source: Source, folder: Path, name: str) -> Path:
    """Return the file of a model, which is written to a folder by this name if it is in memory."""
    if source.path is not None:
        return source.path
    model_io.save(source.load(), folder / name)
    return folder / name


def samples_of(
    data: Data, limit: int | None = None, memory_limit: int | None = None, events: Events = SILENT
) -> Path | list[Sample]:
    """Return the folder of samples, or the samples, each read once, in a form that can be read again.

    ``events``: told how samples along the first axis of arrays were found.
    Raises TypeError for samples that are none of :data:`Data`, ValueError for no sample, and for more than
    :mod:`transforms.run.data_sets` allows.
    """
    data = _told(data, events)
    if isinstance(data, str | os.PathLike):
        return Path(data)
    in_memory = IN_MEMORY if memory_limit is None else memory_limit
    store, room, total = KeptArrays(in_memory), Room(Path(tempfile.gettempdir())), 0
    samples: list[Sample] = []
    for sample in each_sample(data, limit):
        if isinstance(sample, os.PathLike):
            samples.append(sample_file(Path(sample), len(samples)))
            continue
        arrays = arrays_of(sample)
        by_key: dict[Any, np.ndarray] = arrays if isinstance(arrays, dict) else dict(enumerate(arrays))
        if not isinstance(data, Sequence):  # an iterator may reuse the same array
            by_key = {key: array.copy() for key, array in by_key.items()}
        size = sum(array.nbytes for array in by_key.values())
        total += size
        if total > in_memory:
            room.take(size)
        stored = store.keep(by_key)
        samples.append(stored if isinstance(arrays, dict) else tuple(stored.values()))
    return samples


def samples_folder(
    data: Data,
    inputs: Callable[[], Sequence[ModelInput]],
    folder: Path,
    limit: int | None = None,
    events: Events = SILENT,
) -> Path:
    """Return the folder of samples: their own, or one with a file for each, as sequences are read from.

    ``inputs``: those of the model, to which arrays are fitted. ``events``: told how. Raises as
    :func:`samples_of`, and ValueError for a sample without an input.
    """
    data = _told(data, events)
    if isinstance(data, str | os.PathLike):
        return Path(data)
    model_inputs, fitting = inputs(), Fitting()

    def _feeds(samples: Iterable[Any]) -> Iterator[tuple[str, Feed]]:
        for number, sample in enumerate(samples):
            if isinstance(sample, os.PathLike):
                _link(sample_file(Path(sample), number, steps=True), folder, number)
            else:
                yield (
                    f"{number:06d}",
                    fitting.of(by_name(arrays_of(sample), model_inputs, number), model_inputs),
                )

    write_samples(_feeds(each_sample(data, limit)), folder)
    for line in fitting.lines():
        events.note(line)
    return folder


def write_samples(samples: Iterable[tuple[str, Feed]], folder: Path) -> int:
    """Write a file for each sample, by its name; return how many. ValueError where the disk would be full."""
    room, count = Room(folder), 0
    for name, feed in samples:
        room.take(sum(array.nbytes for array in feed.values()))
        write_arrays(folder / f"{name}.npz", feed)
        count += 1
    return count


def _told(data: Data, events: Events) -> Data:
    samples: Data = stacked(data)
    if isinstance(samples, Stacked):
        events.note(samples.line)
    return samples


def _link(file: Path, folder: Path, number: int) -> None:
    """Link a sample, a file or a folder of steps, into a folder."""
    place = folder / f"{number:06d}{file.suffix}"
    try:
        place.symlink_to(file.resolve())
    except OSError:  # where links are not allowed
        (shutil.copytree if file.is_dir() else shutil.copyfile)(file, place)
