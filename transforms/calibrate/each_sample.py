"""The statistics of one sample after another, made by this process or by workers.

For workers a folder holds the model and what is wanted of it; a process opens it once. Their statistics are
merged in the order of the samples: the result is the same for any number of workers.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms import model_io
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.range_statistics import RangeStats
from transforms.calibrate.sample_statistics import Into, Progress, SampleStatistics, Statistics
from transforms.files import cleanup
from transforms.graph.typed import source_files
from transforms.run.workers import Workers
from transforms.runtime.session import RunOptions

_MODEL, _CONTEXT = "float.onnx", "context.pickle"

NamedFeeds = Iterable[tuple[str, Feed]]


@dataclass(frozen=True)
class SampleTask:
    """A sample, and the folder of what is wanted; ``small`` as in :meth:`SampleStatistics.of`."""

    folder: str
    sample: str
    feed: Feed
    small: bool


def add_each(model: SampleStatistics, feeds: NamedFeeds, into: Into, progress: Progress | None = None) -> int:
    """Add the numbers of one sample after another to what ``into`` says; return how many samples."""
    total, done = operator.length_hint(feeds, 0) or None, 0
    for done, (sample, feed) in enumerate(feeds, 1):
        model.of(sample, feed, into)
        if progress:
            progress(done, total)
    return done


def merge_each(
    graph: gs.Graph,
    wanted: Statistics,
    feeds: NamedFeeds,
    options: CalibrationOptions,
    run: RunOptions | None,
    workers: Workers,
    into: Into,
    progress: Progress | None = None,
) -> int:
    """Merge the statistics that workers make of each sample, in order; return how many samples.

    Each run has one thread unless ``run`` says how many: numbers may depend on that, and more would wait for
    the cores that other workers have. Raises ValueError as :meth:`SampleStatistics.of`, and if workers die
    again and again.
    """
    run = run or RunOptions()
    run = replace(run, threads=run.threads or 1)
    total, done, names = operator.length_hint(feeds, 0) or None, 0, list[str]()
    with cleanup.temporary_folder() as folder:
        model = SampleStatistics(graph, wanted, options, run)
        model_io.save(graph, folder / _MODEL, external_data=True)
        empty = {name: one.alike() for name, one in wanted.items()}
        files = [path.resolve() for path in source_files(graph)]
        (folder / _CONTEXT).write_bytes(pickle.dumps((empty, options, run, files)))

        def _tasks() -> Iterator[SampleTask]:
            for sample, feed in feeds:
                names.append(sample)
                yield SampleTask(str(folder), sample, feed, model.is_small(sample, feed))

        try:
            for done, made in enumerate(workers.map(measure, _tasks()), 1):
                sample = names[done - 1]
                for name, found in made.items():
                    _merge(found, into(sample, name), options, f"sample '{sample}', tensor '{name}'")
                if progress:
                    progress(done, total)
        finally:
            _open.cache_clear()
    return done


def measure(task: SampleTask) -> Statistics:
    """Return the statistics of a sample."""
    model, found = _open(task.folder), Statistics()

    def _into(sample: str, name: str) -> list[RangeStats]:
        return [found.setdefault(name, model.nothing_of(name))]

    model.of(task.sample, task.feed, _into, small=task.small)
    return found


@lru_cache(maxsize=1)
def _open(folder: str) -> SampleStatistics:
    """Return the model in a folder; no two folders have the same name."""
    wanted, options, run, files = pickle.loads((Path(folder) / _CONTEXT).read_bytes())
    graph = model_io.load(Path(folder) / _MODEL)
    graph.source_files = files  # of the float model, not of this one
    return SampleStatistics(graph, wanted, options, run)


def _merge(found: RangeStats, into: Iterable[RangeStats], options: CalibrationOptions, place: str) -> None:
    try:
        for whole in into:
            whole.merge(found, options.averaging_constant)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
