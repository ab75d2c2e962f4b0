"""Calibration: statistics of float tensors over samples, in one pass over the data, and ranges from them.

Statistics are kept, not ranges, so that a range for any integer format can follow. Their size depends on the
number of tensors, not on the number of samples.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.range_statistics import RangeStats
from transforms.calibrate.sample_statistics import (
    EachSample,
    Progress,
    SampleStatistics,
    Statistics,
    Take,
    add_array,
    no_statistics,
)
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import TensorAxis
from transforms.runtime.session import RunOptions

__all__ = ["Calibration", "CalibrationOptions", "Progress", "calibrate"]

NamedFeeds = Iterable[tuple[str, Mapping[str, np.ndarray]]]


def calibrate(
    graph: gs.Graph,
    names: Collection[str],
    feeds: NamedFeeds,
    options: CalibrationOptions | None = None,
    *,
    channels: Collection[TensorAxis] = (),
    run: RunOptions | None = None,
    sharing: EachSample | None = None,
    progress: Progress | None = None,
    halved: bool = False,
    most: int | None = None,
) -> Calibration:
    """Run a float model on every feed, once, and return the statistics of its float32 tensors.

    Tensors are constants, inputs and whatever the nodes of the main graph make. Of those in ``channels`` the
    moments along the axis are found, too; a tensor may be there with several axes. ``progress`` is called
    with the number of samples done and, if the feeds tell, the number of all. Where all tensors are
    constants, no feed is taken. The graph is not changed. ``sharing``: what runs the samples in place of
    this process, :class:`transforms.calibrate.shared_samples.Sharing`; without it each run has the threads
    that ``run`` says. ``halved``: statistics of every second sample are kept, too. ``most``: numbers of all
    samples together, as the first tells, up to which histograms are made.

    Raises ValueError, naming tensor and sample, for a name that is not there, is inside a body or no float32
    tensor, for NaN in a tensor or an output, with the infinity that it comes of, and without any feed at
    all.
    """
    options = options or CalibrationOptions()
    observed = no_statistics(names, channels, histogram=options.needs_histogram)
    constants = _constants(graph, observed)
    for name, values in constants.items():
        add_array(observed[name], values, options, f"constant '{name}'")
    if observed.keys() == constants.keys():
        return Calibration(options, observed)
    halves = [{name: one.alike() for name, one in observed.items()} for _ in range(2 * halved)]
    numbers: dict[str, int] = {}
    samples = operator.length_hint(feeds, 0)

    def _merge(sample: str, name: str, found: RangeStats) -> None:
        if sample not in numbers and len(numbers) == 1 and _exceed(observed, samples, most):
            for one in chain.from_iterable(part.values() for part in (observed, *halves)):
                one.histogram = None
        number = numbers.setdefault(sample, len(numbers))
        try:
            observed[name].merge(found, options.averaging_constant, counted=not halved)
            for half in halves[number % 2 :][:1]:
                half[name].merge(found, options.averaging_constant)
        except ValueError as error:
            raise ValueError(f"sample '{sample}', tensor '{name}': {error}") from error

    each = sharing or _each_sample
    if not each(graph, observed, feeds, options, run, progress, _merge):
        raise ValueError("the calibration data hold no sample")
    for half in halves:
        for name, one in half.items():
            if (histogram := observed[name].histogram) and one.histogram:
                histogram.merge(one.histogram)
    return Calibration(options, observed, halves)


def _exceed(observed: Statistics, samples: int, most: int | None) -> bool:
    """Return whether so many samples have too many numbers for histograms, if one does as these."""
    return most is not None and samples * sum(one.count for one in observed.values()) > most


def _each_sample(
    graph: gs.Graph,
    wanted: Statistics,
    feeds: NamedFeeds,
    options: CalibrationOptions,
    run: RunOptions | None,
    progress: Progress | None,
    take: Take,
) -> int:
    """Hand over the statistics of one sample after another, each as it is made."""
    model = SampleStatistics(graph, wanted, options, run)
    total, done = operator.length_hint(feeds, 0) or None, 0
    for done, (sample, feed) in enumerate(feeds, 1):
        model.of(sample, feed, take)
        if progress:
            progress(done, total)
    return done


def _constants(graph: gs.Graph, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return those of the names that are constants; ValueError for one that cannot be calibrated at all."""
    known = walk.tensors(graph)
    for name in names:
        if name not in known:
            inside = any(name in walk.tensors(inner) for inner in walk.graphs(graph))
            place = "inside a body of the model, not in its main graph" if inside else "not in the model"
            raise ValueError(f"tensor '{name}' cannot be calibrated: it is {place}")
        element = dtypes.element_type(known[name])
        if element not in (None, dtypes.FLOAT):  # what is not known here, the session will tell
            kind = onnx.TensorProto.DataType.Name(element).lower()
            raise ValueError(f"'{name}' is a tensor({kind}), only tensors of float32 have ranges")
    return {name: known[name].values for name in names if isinstance(known[name], gs.Constant)}
