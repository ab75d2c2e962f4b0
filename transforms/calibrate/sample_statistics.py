"""Statistics of a sample's tensors, computed tensor by tensor while the model runs.

No tensor leaves the model, and none lives longer than in a run without statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from transforms.calibrate.histogram import Histogram
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.range_statistics import Moments, RangeStats, add_to_all
from transforms.graph import walk
from transforms.graph.dot_products import TensorAxis
from transforms.plan.sentinels import sentinels
from transforms.run.failing_samples import failing
from transforms.run.instrumented_model import InstrumentedModel, float_outputs
from transforms.run.tensor_sizes import Shapes, TensorSizes, is_small_feed, shapes_of
from transforms.runtime.session import RunOptions

Statistics = dict[str, RangeStats]

Into = Callable[[str, str], Sequence[RangeStats]]
"""Called with the names of a sample and a tensor; returns the statistics to which numbers are added."""

_SMALL_TENSORS = 200_000_000
"""Bytes of all tensors of a small sample up to which these may live longer, so that convolutions can run on
blocks of channels, which is faster."""

_BLOCKED = frozenset(["Conv", "FusedConv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
"""Operators that the runtime computes on blocks of channels."""

_PRODUCTS = frozenset(["MatMul", "Gemm"])
"""Operators that it does not; if there are as many of these, blocks save little time."""

_FEW = 5000
"""Tensors of a model up to which it is converted to such blocks, in time that grows with their square."""


def no_statistics(names: Iterable[str], channels: Iterable[TensorAxis], *, histogram: bool) -> Statistics:
    """Return empty statistics for each tensor, with moments along the axes of some of them."""
    channels = list(channels)
    asked = dict.fromkeys((*names, *(name for name, _ in channels)))
    wanted = {name: RangeStats(histogram=Histogram() if histogram else None) for name in asked}
    for name, axis in channels:
        wanted[name].moments[axis] = Moments(axis)
    return wanted


class SampleStatistics:
    """A model that computes statistics of its tensors for each sample."""

    def __init__(
        self,
        graph: gs.Graph,
        wanted: Mapping[str, RangeStats],
        options: CalibrationOptions,
        run: RunOptions | None,
    ) -> None:
        """Open the model; ``wanted``: empty statistics by tensor name, for what is to be measured.

        Constants among them are skipped, outputs of the model checked for NaN.
        """
        self._graph, self._wanted, self._options, self._run = graph, wanted, options, run
        self._outputs = set(float_outputs(graph))
        variables = {name: t for name, t in walk.tensors(graph).items() if isinstance(t, gs.Variable)}
        self._all = [name for name in variables if name in wanted or name in self._outputs]
        bounds = sentinels(graph).bounds
        self._bounds = {name: bounds[id(t)] for name, t in variables.items() if id(t) in bounds}
        self._sizes = TensorSizes(graph, self._all, partial(_measure, graph, run))
        operators = [node.op for node in walk.nodes(graph)]
        blocked, products = (sum(op in some for op in operators) for some in (_BLOCKED, _PRODUCTS))
        self._has_blocks = blocked > products
        self._models: dict[bool, InstrumentedModel[str]] = {}
        self._small: dict[Shapes, bool] = {}

    def nothing_of(self, name: str) -> RangeStats:
        """Return empty statistics of the kinds wanted for a tensor."""
        return self._wanted[name].alike()

    def is_small(self, sample: str, feed: Mapping[str, np.ndarray]) -> bool:
        """Return whether a sample is small enough that tensors may live longer than until they are read.

        False without operators that gain by it. The first sample with its shapes decides, since sizes that
        depend on numbers take a run of the model. Raises ValueError if that fails.
        """
        key = shapes_of(feed)
        if key not in self._small:
            small = self._has_blocks and is_small_feed(feed) and len(self._all) <= _FEW
            if small:
                with self._failing(sample, feed):
                    small = self._sizes.of(feed).total <= _SMALL_TENSORS
            self._small[key] = small
        return self._small[key]

    def _model(self, small: bool) -> InstrumentedModel[str]:
        """Return the model for small samples, or the one in which no tensor lives longer than needed."""
        if small not in self._models:
            self._models.clear()  # only one is open at a time
            run = replace(self._run or RunOptions(), blocked=small, spin=False)
            self._models[small] = InstrumentedModel(self._graph, [], run, watched=self._all)
        return self._models[small]

    def of(
        self, sample: str, feed: Mapping[str, np.ndarray], into: Into, *, small: bool | None = None
    ) -> None:
        """Add the numbers of each tensor to statistics as it is computed, so that one at a time is in memory.

        ``small``: the result of ``is_small`` from another process: numbers may depend on it. NaN and
        sentinels (:mod:`transforms.plan.sentinels`) are left out. Raises ValueError for NaN in an output of
        the model, for channels that differ from those of earlier samples, and if the model fails; for a
        memory limit before the run. Statistics are then incomplete.
        """
        refused = dict[str, Refused]()

        def _see(name: str, array: np.ndarray) -> None:
            place = f"sample '{sample}', tensor '{name}'"
            try:
                if name in self._outputs:
                    _refuse_nan(array, place)
                if name in self._wanted:
                    add_array(into(sample, name), self._numbers(name, array), self._options, place)
            except Refused as error:
                refused[name] = error

        small = self.is_small(sample, feed) if small is None else small
        with self._failing(sample, feed):
            self._check_limit(sample, feed)
            self._model(small).run(feed, see=_see)
        first = next((name for name in self._all if name in refused), None)  # in the graph's order
        if first is not None:
            error = refused[first]
            from transforms.calibrate.cause_of_nan import cause_of_nan

            cause = cause_of_nan(self._graph, feed, self._run, first) if error.is_nan else None
            raise (error if cause is None else ValueError(f"sample '{sample}', {cause}")) from error

    def _numbers(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return an array in which sentinels are replaced by infinities."""
        if name not in self._bounds:
            return array
        low, high = self._bounds[name]
        return np.where((array <= low) | (array >= high), np.float32(np.inf), array)

    def _failing(self, sample: str, feed: Mapping[str, np.ndarray]) -> AbstractContextManager[None]:
        return failing({sample: feed}, self._graph, self._run, "the prepared model")

    def _check_limit(self, sample: str, feed: Mapping[str, np.ndarray]) -> None:
        limit = self._options.memory_limit
        if limit is not None and (needed := self._sizes.of(feed).at_once) > limit:
            raise ValueError(
                f"memory limit: {limit:,} bytes cannot hold, "
                f"sample '{sample}' has tensors of {needed:,} bytes at once"
            )


def _measure(
    graph: gs.Graph, run: RunOptions | None, names: Collection[str], feed: Mapping[str, np.ndarray]
) -> dict[str, int]:
    """Return the bytes of tensors in a run in which none lives longer than until it is read.

    As a method it would keep its object alive, and with it a session's memory, until garbage collection.
    """
    sizes: dict[str, int] = {}

    def _see(name: str, array: np.ndarray) -> None:
        sizes[name] = array.nbytes

    run = replace(run or RunOptions(), blocked=False, prepack=False)
    InstrumentedModel(graph, [], run, watched=names).run(feed, see=_see)
    return sizes


class Refused(ValueError):
    """An array cannot be added to statistics; ``is_nan``: because it holds NaN."""

    def __init__(self, message: str, is_nan: bool = False) -> None:
        """Say why."""
        super().__init__(message)
        self.is_nan = is_nan


def add_array(
    parts: Sequence[RangeStats], array: np.ndarray, options: CalibrationOptions, place: str
) -> None:
    """Add the numbers of an array to statistics; Refused, naming the place, if they do not fit."""
    try:
        add_to_all(parts, array, options.averaging_constant)
    except ValueError as error:
        raise Refused(f"{place}: {error}") from error


def _refuse_nan(array: np.ndarray, place: str) -> None:
    if np.isnan(array.min(initial=0)):
        raise Refused(f"{place}: it holds NaN", is_nan=True)
