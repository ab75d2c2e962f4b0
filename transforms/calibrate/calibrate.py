"""Calibration: statistics of float tensors over samples, in one pass over the data, and ranges from them.

Statistics are kept, not ranges, so that a range for any integer format can follow. Their size depends on the
number of tensors, not on the number of samples.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ops.formats import Format
from transforms.calibrate.histogram import Histogram
from transforms.calibrate.methods import CalibrationOptions, choose_range
from transforms.calibrate.not_finite import first_nan, where_nan_ends
from transforms.calibrate.range_statistics import Moments, RangeStats
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import TensorAxis
from transforms.run.instrumented_model import InstrumentedModel, float_outputs
from transforms.runtime.session import RunOptions

__all__ = ["Calibration", "CalibrationOptions", "calibrate"]

NamedFeeds = Iterable[tuple[str, Mapping[str, np.ndarray]]]
Progress = Callable[[int, int | None], None]

_FLOAT = "tensor(float)"
_EMPTY = (math.inf, -math.inf)
"""The range of no numbers: what ONNX Runtime's ReduceMin and ReduceMax make of an empty tensor."""


class Calibration:
    """The statistics of tensors, by name, and the ranges that follow by the options."""

    def __init__(self, options: CalibrationOptions, observed: Mapping[str, RangeStats]) -> None:
        """Keep options and statistics."""
        self.options, self.observed = options, dict(observed)

    def range(self, name: str, format: Format, *, symmetric: bool) -> tuple[float, float]:
        """Return the range of a tensor for an integer format, within the numbers that were observed.

        ``symmetric`` is whether zero will be in the middle of what the format covers. ValueError, naming the
        tensor, when it was not calibrated, it had no elements in any sample, or the format has no scale.
        """
        try:
            if name not in self.observed:
                raise ValueError(f"tensor '{name}' was not calibrated")
            return choose_range(self.observed[name], format, symmetric=symmetric, options=self.options)
        except ValueError as error:
            raise ValueError(f"tensor '{name}' has no range: {error}") from error

    def mean_squares(self, channels: Iterable[TensorAxis]) -> dict[TensorAxis, np.ndarray]:
        """Return the mean square of each channel along those axes of tensors for which moments were found."""
        found = {(n, axis): self.observed[n].moments.get(axis) for n, axis in channels if n in self.observed}
        return {key: moments.mean_square for key, moments in found.items() if moments and moments.count}


def calibrate(
    graph: gs.Graph,
    names: Collection[str],
    feeds: NamedFeeds,
    options: CalibrationOptions | None = None,
    *,
    channels: Collection[TensorAxis] = (),
    run: RunOptions | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Run a float model on every feed, once, and return the statistics of its float32 tensors.

    Tensors are constants, inputs and whatever the nodes of the main graph make. Of those in ``channels`` the
    moments along the axis are found, too; a tensor may be there with several axes. ``progress`` is called
    with the number of samples done and, if the feeds tell, the number of all. Where all tensors are
    constants, no feed is taken. The graph is not changed.

    Raises ValueError, naming tensor and sample, for a name that is not there, is inside a body or no float32
    tensor, for NaN in a tensor or an output, with the infinity that it comes of, and without any feed at
    all.
    """
    options = options or CalibrationOptions()
    asked = dict.fromkeys((*names, *(name for name, _ in channels)))
    observed = {n: RangeStats(histogram=Histogram() if options.needs_histogram else None) for n in asked}
    for name, axis in channels:
        observed[name].moments[axis] = Moments(axis)
    constants = _constants(graph, observed)
    for name, values in constants.items():
        _add_array(observed[name], values, options, f"constant '{name}'")
    if observed.keys() == constants.keys():
        return Calibration(options, observed)
    watch = _Watch(graph, observed, options, run)
    total, done = operator.length_hint(feeds, 0) or None, 0
    for done, (sample, feed) in enumerate(feeds, 1):
        watch.add(sample, feed)
        if progress:
            progress(done, total)
    if not done:
        raise ValueError("the calibration data hold no sample")
    return Calibration(options, observed)


class _Watch:
    """A model that adds its tensors to their statistics, sample by sample."""

    def __init__(
        self,
        graph: gs.Graph,
        observed: Mapping[str, RangeStats],
        options: CalibrationOptions,
        run: RunOptions | None,
    ) -> None:
        self._graph, self._observed, self._options, self._run = graph, observed, options, run
        self._outputs = set(float_outputs(graph))
        variables = [name for name, t in walk.tensors(graph).items() if isinstance(t, gs.Variable)]
        self._all = [name for name in variables if name in observed or name in self._outputs]
        asked = [name for name in self._all if name in observed]
        with_moments = [name for name in asked if observed[name].moments]
        self._open(asked, self._all if options.needs_histogram else with_moments)

    def _open(self, asked: Collection[str], fetched: Collection[str]) -> None:
        """Open the model to see some tensors as arrays, of the others asked for lowest and highest number.

        Sums, which are not finite when a term is not, tell of NaN: ReduceMin and ReduceMax can pass over it.
        """
        self._fetched, self._reduced = fetched, [name for name in asked if name not in fetched]
        ends = where_nan_ends(self._graph, {*self._reduced, *self._outputs} - {*fetched})
        self._sums = [(name, "sum") for name in ends]
        ranges = [(name, end) for name in self._reduced for end in ("low", "high")]
        shown: list[str | tuple[str, str]] = [*ranges, *self._sums, *fetched]
        self._model = InstrumentedModel(self._graph, shown, self._run)
        for key, kind in self._model.types().items():
            name = key if isinstance(key, str) else key[0]
            if kind != _FLOAT:
                raise ValueError(f"'{name}' is a {kind}, only tensors of float32 have ranges")

    def add(self, sample: str, feed: Mapping[str, np.ndarray]) -> None:
        """Add a sample; ValueError for NaN, or if the model fails."""
        found = self._observe(sample, feed)
        ranges = {name: (float(found[name, "low"]), float(found[name, "high"])) for name in self._reduced}
        finite = all(math.isfinite(high - low) for low, high in ranges.values() if (low, high) != _EMPTY)
        if not finite or not all(math.isfinite(found[key]) for key in self._sums):
            self._open([], self._all)  # from now on, for what is infinite once tends to be so always
            found, ranges = self._observe(sample, feed), {}
        for name, (low, high) in ranges.items():
            self._observed[name].add_range(low, high, self._options.averaging_constant)
        for name in self._fetched:
            place = f"sample '{sample}', tensor '{name}'"
            one = self._observed.get(name) or RangeStats()  # an output that matters for NaN alone
            array = found.pop(name)
            try:
                _add_array(one, array, self._options, place)
            except ValueError as error:
                raise (self._cause(sample, feed) if np.isnan(array).any() else None) or error from error

    def _cause(self, sample: str, feed: Mapping[str, np.ndarray]) -> ValueError | None:
        """Return the cause of a NaN, if it is an infinity."""
        found = first_nan(self._graph, feed, self._run)
        if found is None or found.infinite is None:
            return None
        return ValueError(
            f"sample '{sample}', {found.kind} '{found.infinite}': it holds inf, "
            f"of which tensor '{found.name}' becomes NaN"
        )

    def _observe(
        self, sample: str, feed: Mapping[str, np.ndarray]
    ) -> dict[str | tuple[str, str], np.ndarray]:
        try:
            return self._model.run(feed)
        except Exception as error:  # the runtime's exceptions share no narrower class
            raise ValueError(f"sample '{sample}': the model fails: {' '.join(str(error).split())}") from error


def _add_array(one: RangeStats, array: np.ndarray, options: CalibrationOptions, place: str) -> None:
    try:
        one.add_array(array, options.averaging_constant)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


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
