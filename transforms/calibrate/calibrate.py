"""Calibration: statistics of float tensors over samples, in one pass over the data, and ranges from them.

Statistics are kept, not ranges, so that a range for any integer format can be derived. Their size depends on
the number of tensors, not on the number of samples.
"""

from __future__ import annotations

import math
import operator
import pickle
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms import model_io
from transforms.calibrate.calibration import FOLDS, Calibration, fold_of, half_of
from transforms.calibrate.histogram import Histogram
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.range_statistics import RangeStats
from transforms.calibrate.sample_statistics import (
    Into,
    SampleStatistics,
    Statistics,
    add_array,
    no_statistics,
)
from transforms.files import cleanup
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import TensorAxis
from transforms.graph.typed import source_files
from transforms.graph.value_limits import Limits, limits_of
from transforms.model.model_error import ModelError
from transforms.run.events import Progress
from transforms.runtime.session import RunOptions

if TYPE_CHECKING:
    from transforms.run.workers import Workers

__all__ = ["Calibration", "CalibrationOptions", "Progress", "calibrate"]

_MODEL, _CONTEXT = "float.onnx", "context.pickle"

NamedFeeds = Iterable[tuple[str, Feed]]


def calibrate(
    graph: gs.Graph,
    names: Collection[str],
    feeds: NamedFeeds,
    options: CalibrationOptions | None = None,
    *,
    channels: Collection[TensorAxis] = (),
    run: RunOptions | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    halved: bool = False,
    folded: bool = False,
    most: int | None = None,
) -> Calibration:
    """Run a float model once on every feed, and return the statistics of its float32 tensors.

    Tensors may be constants, inputs and outputs of nodes of the main graph. For those in ``channels`` the
    moments along the axis are measured, too; a tensor may appear with several axes. ``progress`` is called
    with the number of samples done and, if the feeds have a length, the total. If all tensors are constants,
    no feed is taken. The graph is not changed. ``workers`` run the samples, each on one thread unless
    ``run`` sets more; without them each run has the threads of ``run``. ``halved``: also keep statistics of
    every second sample; ``folded``: of each fold. ``most``: the number of values over all samples, as
    estimated from the first, up to which histograms are made.

    NaN and infinities are left out. Raises ValueError, naming tensor and sample, for a name that is unknown,
    inside a body or not a float32 tensor, for NaN in an output, with the infinity that causes it, and
    without any feed.
    """
    # constants are measured without a run
    options = options or CalibrationOptions()
    observed = no_statistics(names, channels, histogram=options.needs_histogram)
    constants = _constants(graph, observed)
    limit(graph, observed)
    for name, values in constants.items():
        if np.isnan(values).any():
            raise ValueError(f"constant '{name}': it holds NaN")
        add_array([observed[name]], values, options, f"constant '{name}'")
    if observed.keys() == constants.keys():
        return Calibration(options, observed)
    # each sample goes to the statistics of all samples, and of its half and fold
    subsets = _Parts(observed, halved, folded, observed.keys() - constants.keys())
    numbers: dict[str, int] = {}
    total, done = operator.length_hint(feeds, 0), 0

    def _into(sample: str, name: str) -> list[RangeStats]:
        if sample not in numbers and len(numbers) == 1 and _count(observed) * total > (most or math.inf):
            subsets.leave_out_histograms()
        return subsets.of(name, numbers.setdefault(sample, len(numbers)))

    wanted = subsets.finest[0]
    if workers:
        added = _merged(graph, wanted, feeds, options, run, workers, _into)
    else:
        added = _added(SampleStatistics(graph, wanted, options, run), feeds, _into)
    for done, _ in enumerate(added, 1):
        if progress:
            progress(done, total or None)
    if not done:
        raise ValueError("the calibration data hold no sample")
    subsets.merge_histograms()
    return Calibration(options, observed, subsets.halves, folds=subsets.folds)


class _Parts:
    """Statistics of all samples and, if requested, of ``halves`` and ``folds`` of them.

    Histograms are collected for the ``finest`` parts and merged for the others at the end.
    """

    def __init__(self, observed: Statistics, halved: bool, folded: bool, measured: Collection[str]) -> None:
        """Start empty; ``measured``: the names of the tensors other than constants."""
        self._observed, self._measured = observed, measured
        self.halves, self.folds = (
            [{name: statistics.alike() for name, statistics in observed.items()} for _ in range(count)]
            for count in (2 * halved, FOLDS * folded)
        )
        self.finest = self.folds or self.halves or [observed]
        self._coarser = [observed] if self.folds or self.halves else []
        self._coarser += self.halves if self.folds else []
        for part in self._coarser:
            for name in measured:
                part[name].histogram = None

    def of(self, name: str, place: int) -> list[RangeStats]:
        """Return the statistics of a tensor to which a sample is added."""
        halves, folds = self.halves[half_of(place) :][:1], self.folds[fold_of(place) :][:1]
        return [part[name] for part in (self._observed, *halves, *folds)]

    def leave_out_histograms(self) -> None:
        """Stop collecting histograms."""
        for part in (self._observed, *self.halves, *self.folds):
            for statistics in part.values():
                statistics.histogram = None

    def merge_histograms(self) -> None:
        """Merge the histograms of halves and of all samples."""
        finer = self.finest, *(self.folds[number::2] for number in range(2))
        for part, folds in zip(self._coarser, finer, strict=False):
            for name in self._measured:
                part[name].histogram = _merged_histogram(fold[name] for fold in folds)


def _merged_histogram(parts: Iterable[RangeStats]) -> Histogram | None:
    """Return the merged histogram of several parts, or None if there are none."""
    histograms = [part.histogram for part in parts if part.histogram]
    if not histograms:
        return None
    merged = Histogram()
    for histogram in histograms:
        merged.merge(histogram)
    return merged


def _count(observed: Statistics) -> int:
    return sum(statistics.count for statistics in observed.values())


def limit(graph: gs.Graph, *parts: Statistics) -> None:
    """Set the value limits of tensors in several statistics of a graph's tensors."""
    tensors, before = walk.tensors(graph), dict[int, Limits]()
    for name in parts[0]:
        limits = limits_of(tensors[name], before)
        for part in parts:
            part[name].limits = limits


def _constants(graph: gs.Graph, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return those of the names that are constants; ValueError for one that cannot be calibrated."""
    tensors = walk.tensors(graph)
    for name in names:
        if name not in tensors:
            inside = any(name in walk.tensors(inner) for inner in walk.graphs(graph))
            place = "inside a body of the model, not in its main graph" if inside else "not in the model"
            raise ValueError(f"tensor '{name}' cannot be calibrated: it is {place}")
        element = dtypes.element_type(tensors[name])
        if element not in (None, dtypes.FLOAT):  # the session reports types that are unknown here
            kind = onnx.TensorProto.DataType.Name(element).lower()
            raise ModelError(f"'{name}' is a tensor({kind}), only tensors of float32 have ranges")
    return {name: tensors[name].values for name in names if isinstance(tensors[name], gs.Constant)}


@dataclass(frozen=True)
class SampleTask:
    """A sample, and the folder of the requested statistics; ``small`` as in :meth:`SampleStatistics.of`."""

    folder: str
    sample: str
    feed: Feed
    small: bool


def _added(model: SampleStatistics, feeds: NamedFeeds, into: Into) -> Iterator[str]:
    """Add samples one by one to the statistics returned by ``into``; yield their names."""
    for sample, feed in feeds:
        model.of(sample, feed, into)
        yield sample


def _merged(
    graph: gs.Graph,
    wanted: Statistics,
    feeds: NamedFeeds,
    options: CalibrationOptions,
    run: RunOptions | None,
    workers: Workers,
    into: Into,
) -> Iterator[str]:
    """Merge the statistics that workers compute of each sample, in order; yield its name.

    Each run has one thread unless ``run`` sets more: numbers may depend on that, and more threads would
    compete for the cores of other workers. Raises ValueError as :meth:`SampleStatistics.of`, and if workers
    die repeatedly.
    """
    run = run or RunOptions()
    run, names = replace(run, threads=run.threads or 1), list[str]()
    with cleanup.temporary_folder() as folder:
        model = SampleStatistics(graph, wanted, options, run)
        model_io.save(graph, folder / _MODEL, external_data=True)
        empty = {name: statistics.alike() for name, statistics in wanted.items()}
        files = [path.resolve() for path in source_files(graph)]
        (folder / _CONTEXT).write_bytes(pickle.dumps((empty, options, run, files)))

        def _tasks() -> Iterator[SampleTask]:
            for sample, feed in feeds:
                names.append(sample)
                yield SampleTask(str(folder), sample, feed, model.is_small(sample, feed))

        try:
            for number, measured in enumerate(workers.map(measure, _tasks())):
                sample = names[number]
                for name, addition in measured.items():
                    _merge(addition, into(sample, name), options, f"sample '{sample}', tensor '{name}'")
                yield sample
        finally:
            _open.cache_clear()


def measure(task: SampleTask) -> Statistics:
    """Return the statistics of a sample."""
    model, statistics = _open(task.folder), Statistics()

    def _into(sample: str, name: str) -> list[RangeStats]:
        return [statistics.setdefault(name, model.nothing_of(name))]

    model.of(task.sample, task.feed, _into, small=task.small)
    return statistics


@lru_cache(maxsize=1)
def _open(folder: str) -> SampleStatistics:
    """Return the model in a folder; names of folders are unique."""
    wanted, options, run, files = pickle.loads((Path(folder) / _CONTEXT).read_bytes())
    graph = model_io.load(Path(folder) / _MODEL)
    graph.source_files = files  # of the float model, not of this copy
    return SampleStatistics(graph, wanted, options, run)


def _merge(
    sample_stats: RangeStats, into: Iterable[RangeStats], options: CalibrationOptions, place: str
) -> None:
    try:
        for target in into:
            target.merge(sample_stats, options.averaging_constant)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
