"""Name the cause of a layer's loss and the remedies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import ops
from ops.array_types import AnyArray
from ops.metrics import Sums, decibels
from transforms.precision.readings import Grid, Reading

KEEP, MORE_BITS, PER_CHANNEL, TUNE = "keep in float", "16 bits", "per channel", "tune"
SAMPLES, OUTLIERS = "more samples", "move outliers"
"""Remedies; :mod:`onnx_narrow.summaries.origins` has a command for each."""

_OUTLYING = 16.0
"""Multiple of the root mean square from which on the largest number is an outlier: a Gaussian has 5."""

_SPREAD = 4.0
"""Multiple of the median channel's range from which on the widest channel coarsens the others."""

_WIDE = 4.0
"""Multiple of the samples' range from which on a grid was calibrated for other numbers."""

_FEW_BITS = 8


@dataclass(frozen=True)
class Cause:
    """What loses most in a layer, in words, its SQNR in dB alone, and remedies, the best first."""

    words: str
    decibels: float
    helps: tuple[str, ...]


def cause_of(readings: Iterable[Reading], seen: Mapping[str, Sequence[AnyArray]]) -> Cause:
    """Return the cause of a layer's loss: the weight or input that loses most by rounding.

    ``seen``: arrays of source tensors, one for each sample.
    """
    candidates = [
        _of_weight(reading)
        for reading in readings
        if reading.values is not None and (reading.index < 2 or not reading.is_tunable)
    ]
    candidates += [_of_input(reading, seen[reading.source]) for reading in readings if reading.source in seen]
    causes = [cause for cause in candidates if cause is not None]
    otherwise = Cause("rounding, of no tensor more than of others", float("inf"), (MORE_BITS, KEEP))
    return min(causes, key=lambda cause: cause.decibels, default=otherwise)


def _of_weight(reading: Reading) -> Cause | None:
    values, rounded = reading.values, reading.rounded
    if values is None or rounded is None:
        return None
    sums = Sums()
    sums.add(values, rounded)
    bits = _bits(reading.format)
    grid = reading.grid
    spread = _spread(values) if grid is not None and grid.scale.size == 1 and values.ndim > 1 else 1.0
    if spread >= _SPREAD:
        words = (
            f"weights: channels spread, the widest has {spread:.0f} times the range of the median, "
            "and one scale serves all"
        )
        return Cause(words, sums.sqnr(), (PER_CHANNEL, MORE_BITS, KEEP))
    helps = (TUNE, MORE_BITS, KEEP) if reading.is_tunable else (MORE_BITS, KEEP)
    if bits and bits < _FEW_BITS:
        return Cause(f"rounding of weights to {reading.format}, few bits", sums.sqnr(), helps)
    return Cause(f"rounding of weights to {reading.format or 'a grid'}", sums.sqnr(), helps)


def _of_input(reading: Reading, arrays: Sequence[AnyArray]) -> Cause | None:
    numbers = np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in arrays])
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size or reading.grid is None:
        return None
    grid, source = reading.grid, reading.label
    low, high = float(numbers.min()), float(numbers.max())
    reach = f"numbers from {low:.4g} to {high:.4g}, {reading.format} covers {grid.low:.4g} to {grid.high:.4g}"
    error, cut = _errors(numbers, grid)
    power = float(numbers @ numbers)
    ratio = decibels(error, power) if power else math.inf
    if cut > error / 2:
        return Cause(f"{source}: clipped, {reach}", ratio, (SAMPLES, MORE_BITS, KEEP))
    largest, typical = float(np.abs(numbers).max()), float(np.sqrt(power / numbers.size))
    if typical and largest > _OUTLYING * typical:
        words = f"{source}: outliers, the largest number is {largest / typical:.0f} times the RMS; {reach}"
        return Cause(words, ratio, (MORE_BITS, OUTLIERS, KEEP))
    if high > low and grid.high - grid.low > _WIDE * (high - low):
        return Cause(f"{source}: its range is too wide, {reach}", ratio, (SAMPLES, MORE_BITS, KEEP))
    words = f"rounding of {source} in steps of {float(grid.scale.max()):.3g}, its RMS is {typical:.3g}"
    return Cause(words, ratio, (MORE_BITS, KEEP))


def _errors(numbers: AnyArray, grid: Grid) -> tuple[float, float]:
    """Return the squared error of rounding to a grid, and the part of it that is clipping."""
    step, zero = float(grid.scale.reshape(-1)[0]), float(grid.zero_point.reshape(-1)[0])
    inside = np.clip(numbers, grid.low, grid.high)
    rounded = (np.clip(np.rint(inside / step + zero), *_ends(grid, step, zero)) - zero) * step
    cut = numbers - inside
    return float(np.square(numbers - rounded).sum()), float(cut @ cut)


def _ends(grid: Grid, step: float, zero: float) -> tuple[float, float]:
    return round(grid.low / step + zero), round(grid.high / step + zero)


def _spread(values: AnyArray) -> float:
    """Return the ratio of the widest channel's range to the median, along axis 0 or the last."""
    axis = 0 if values.ndim > 2 else values.ndim - 1
    reduced = tuple(i for i in range(values.ndim) if i != axis)
    ranges = np.abs(values).max(axis=reduced)
    median = float(np.median(ranges))
    return float(ranges.max() / median) if median else 1.0


def _bits(name: str) -> float:
    try:
        return ops.get_format(name).bits if name else 0
    except ValueError:
        return 0
