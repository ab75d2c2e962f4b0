"""Derive ranges from statistics of tensors by the options of a scheme."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ops.formats import Format
from transforms.calibrate.methods import CalibrationOptions, choose_range
from transforms.calibrate.range_statistics import RangeStats, joined
from transforms.graph.dot_products import TensorAxis
from transforms.scheme import Scheme
from transforms.scheme.scheme import POWER_OF_TWO


def options_of(scheme: Scheme) -> CalibrationOptions:
    """Return the calibration options of a scheme."""
    return CalibrationOptions(
        scheme.range_method,
        scheme.percentile,
        scheme.moving_average,
        scheme.averaging_constant,
        power_of_two=scheme.scale == POWER_OF_TWO,
        tensors=scheme.calibrate_tensors,
    )


def half_of(place: int) -> int:
    """Return the half to which a sample belongs, given its place: they alternate."""
    return place % 2


FOLDS = 4
"""Number of folds, which alternate: each has a fourth of the samples, the rest gives ranges without it."""


def fold_of(place: int) -> int:
    """Return the fold to which a sample belongs, given its place."""
    return place % FOLDS


_ALIKE = 0.99

KnownRanges = dict[tuple[int, Format, bool, Hashable], tuple[RangeStats, tuple[float, float]]]
"""Cache of ranges, keyed by the id of the statistics, format, symmetry and method; with the statistics."""


class Calibration:
    """The statistics of tensors by name, and the ranges derived by the options.

    ``halves``: statistics of the even and of the odd samples, ``folds``: of each fold, if requested.
    """

    def __init__(
        self,
        options: CalibrationOptions,
        observed: Mapping[str, RangeStats],
        halves: Sequence[Mapping[str, RangeStats]] = (),
        known: KnownRanges | None = None,
        *,
        folds: Sequence[Mapping[str, RangeStats]] = (),
    ) -> None:
        """Take options and statistics, which must not change any more.

        ``known``: cached ranges, shared with calibrations that have some of the same statistics.
        """
        self.options, self.observed, self.halves = options, dict(observed), tuple(halves)
        self.folds = tuple(folds)
        self._known: KnownRanges = {} if known is None else known

    def with_(self, options: CalibrationOptions) -> Calibration:
        """Return a calibration with the same statistics and other options."""
        return Calibration(options, self.observed, self.halves, self._known, folds=self.folds)

    def with_empty(self, sources: Mapping[str, str]) -> Calibration:
        """Return a calibration in which some empty tensors have the statistics of others, if measured."""

        def _filled(found: Mapping[str, RangeStats]) -> dict[str, RangeStats]:
            return {**found, **{name: found[source] for name, source in sources.items() if source in found}}

        halves, folds = ([_filled(part) for part in parts] for parts in (self.halves, self.folds))
        return Calibration(self.options, _filled(self.observed), halves, self._known, folds=folds)

    def with_more(self, other: Calibration) -> Calibration:
        """Return a calibration extended by statistics of other tensors, on the same samples and parts."""
        halves, folds = (
            [{**part, **more} for part, more in zip(parts, others, strict=True)]
            for parts, others in ((self.halves, other.halves), (self.folds, other.folds))
        )
        observed = {**self.observed, **other.observed}
        return Calibration(self.options, observed, halves, self._known, folds=folds)

    @property
    def has_histograms(self) -> bool:
        """Whether statistics suffice for methods that need more than the lowest and highest numbers."""
        return all(statistics.histogram is not None for statistics in self.observed.values())

    def numbers(self, name: str) -> float:
        """Return the number of values of a tensor over all samples."""
        return float(self.observed[name].count)

    @property
    def samples(self) -> int:
        """The largest number of samples in which a tensor had values; at least 1."""
        return max([1, *(statistics.ends.count for statistics in self.observed.values())])

    def half(self, number: int, options: CalibrationOptions) -> Calibration:
        """Return the calibration on every second sample, from the first (0) or the second (1) on.

        A tensor without values in these samples has the statistics of all: keys and values of a past that is
        empty in each prompt.
        """
        half = {name: self._in_half(name, number) for name in self.halves[number]}
        return Calibration(options, half, (), self._known)

    def without_fold(self, number: int) -> Calibration:
        """Return the calibration on the samples outside of one of the ``folds``.

        A tensor without values in these samples has the statistics of all.
        """
        rest = [part for place, part in enumerate(self.folds) if place != number]
        merged = {name: joined([part[name] for part in rest]) for name in self.observed}
        empty = {name: self.observed[name] for name, statistics in merged.items() if statistics.is_empty}
        return Calibration(self.options, {**merged, **empty})

    def _in_half(self, name: str, number: int) -> RangeStats:
        statistics = self.halves[number][name]
        return self.observed[name] if statistics.is_empty else statistics

    def halves_differ(self, names: Iterable[str]) -> bool:
        """Return whether the common range of some tensors differs between halves, by 1 percent at either end.

        Constants among them, which were not measured, are the same in both.
        """
        names = [name for name in names if name in self.observed]
        halves = [[self._in_half(name, half) for name in names] for half in range(2)]
        lows = sorted(max(max(-statistics.low, 0.0) for statistics in half) for half in halves)
        highs = sorted(max(max(statistics.high, 0.0) for statistics in half) for half in halves)
        return lows[0] < _ALIKE * lows[1] or highs[0] < _ALIKE * highs[1]

    def range(self, name: str, format: Format, *, symmetric: bool) -> tuple[float, float]:
        """Return the range of a tensor for an integer format, within the observed numbers.

        ``symmetric``: zero will be in the middle of the format's range. ValueError, naming the tensor, if it
        was not calibrated, had no elements in any sample, or the format has no scale.
        """
        try:
            if name not in self.observed:
                raise ValueError(f"tensor '{name}' was not calibrated")
            observed, options = self.observed[name], self.options
            method = options.tensors.get(name, options.method)
            how = method, options.percentile, options.moving_average, options.power_of_two
            key = id(observed), format, symmetric, how
            if key not in self._known:
                ends = choose_range(observed, format, symmetric=symmetric, options=options, method=method)
                self._known[key] = observed, ends  # keeps the statistics alive, so that their id stays unique
            return self._known[key][1]
        except ValueError as error:
            raise ValueError(f"tensor '{name}' has no range: {error}") from error

    @property
    def holding_nan(self) -> set[str]:
        """The names of the tensors that held NaN in a sample."""
        return {name for name, statistics in self.observed.items() if statistics.has_nan}

    def extremes(self) -> dict[str, tuple[float, float]]:
        """Return the lowest and the highest number of each tensor with observed numbers."""
        return {
            name: (statistics.low, statistics.high)
            for name, statistics in self.observed.items()
            if not statistics.is_empty
        }

    def means(self, channels: Iterable[TensorAxis]) -> dict[TensorAxis, np.ndarray]:
        """Return the mean of each channel along those axes of tensors whose moments were measured."""
        return {key: means[0] for key, means in self._means(channels)}

    def mean_squares(self, channels: Iterable[TensorAxis]) -> dict[TensorAxis, np.ndarray]:
        """Return the mean square of each channel along those axes of tensors whose moments were measured."""
        return {key: means[1] for key, means in self._means(channels)}

    def _means(self, channels: Iterable[TensorAxis]) -> Iterator[tuple[TensorAxis, np.ndarray]]:
        for name, axis in channels:
            moments = self.observed[name].moments.get(axis) if name in self.observed else None
            if moments and moments.count:
                yield (name, axis), moments.means
