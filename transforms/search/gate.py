"""A bound of a metric that a file has to keep to: the user's, or one by name.

The metric is a figure for each sample, of the model and of the float model on the same samples, so that what
is lost has a standard error that does not hold the scatter of the samples themselves.

Figures such as "the answer is right" do not change on most samples: of 16 without a change nobody knows
whether one in 20 or one in 1000 elsewhere has one. Where fewer than half of the samples change, errors of the
outputs are therefore magnified, so that more do, and what is lost then is divided by as much: the share of
answers that flip grows in proportion to small errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from transforms.search.output_metrics import Outputs, is_float_array
from transforms.search.target import Scored, Target, TargetError
from transforms.search.user_metric import SampleSet

Figures = Callable[[SampleSet], "float | NDArray[np.float64]"]
"""Returns a figure of each sample, or one of all; higher is better."""

_MOST_MAGNIFIED = 16.0
"""Times that errors are magnified at most, 24 dB: what larger errors do says little of small ones."""

_ROOM = 4.0
"""How many samples may be lost, divided by the magnification, within the bound: few tell little."""

_SAME = 1e-9


class GateError(TargetError):
    """A model that does not keep to a gate: no file is written."""


@dataclass(frozen=True)
class Gate(Target):
    """A bound of a metric of the name ``metric``: at least, or at most as a ``loss`` to the float model.

    ``figures``: of samples; None for the SQNR, which is one figure of all. ``whole``: outputs of all types
    count, as they are, not only those that are compared. ``scatters``: whether figures of the float model
    itself differ from sample to sample, as those of labels. ``places``: in the data, of those that judge.
    """

    is_gate: ClassVar[bool] = True
    loss: bool = False
    figures: Figures | None = None
    whole: bool = False
    scatters: bool = False
    places: tuple[int, ...] = ()

    @property
    def larger_is_better(self) -> bool:
        """Whether the limit is a lower bound."""
        return not self.loss

    @property
    def words(self) -> str:
        """What is bounded, before a value."""
        return f"loss of {self.metric}" if self.loss else super().words

    @property
    def bound(self) -> str:
        """The limit in words, nothing of one that anything passes."""
        return super().bound if math.isfinite(self.limit) else ""

    def unmet(self, text: str) -> TargetError:
        """Return the error for a model that misses the bound."""
        return GateError(text)

    def scored(self, samples: SampleSet) -> Scored:
        """Return the metric of samples, or what is lost of it, with its standard error."""
        assert self.figures is not None, "the SQNR has none"
        return _Paired(self, self.figures, samples).scored()


@dataclass(frozen=True)
class _Paired:
    """Figures of one model and of the float model on the same samples."""

    gate: Gate
    figures: Figures
    samples: SampleSet

    def scored(self) -> Scored:
        count = len(self.samples.outputs)
        (made, figures), (whole, known) = self._of_model, self._of_float
        value, each = (whole - made, known - figures) if self.gate.loss else (-made, -figures)
        error = float(np.std(each, ddof=1) / math.sqrt(count)) if count > 1 else 0.0
        if self.gate.scatters and not self.gate.loss and error <= _SAME * abs(value):
            error = abs(value) / (count + 1)  # as if one more sample had nothing
        end = max(value + error, self._magnified_end(value))
        return Scored(value if self.gate.loss else -value, max(error, end - value), count)

    @cached_property
    def _of_float(self) -> tuple[float, NDArray[np.float64]]:
        return each_figure(self.figures, self.samples.of_float())

    @cached_property
    def _of_model(self) -> tuple[float, NDArray[np.float64]]:
        return each_figure(self.figures, self.samples)

    def _magnified_end(self, value: float) -> float:
        """Return the worse end of a loss by magnified errors; that of a value that is negated, likewise.

        Few samples change: the number that do has the upper end k + 1 + sqrt(k + 3/4) of one standard error
        (N. Gehrels, 1986, equation 7).
        """
        (float_value, floats), (_, made), count = self._of_float, self._of_model, len(self.samples.outputs)
        size = max(abs(floats).max(), abs(made).max(), np.finfo(float).tiny)
        if 2 * np.count_nonzero(abs(floats - made) > _SAME * size) >= count:
            return -math.inf
        room = self.gate.limit if self.gate.loss else float_value - self.gate.limit
        times = min(max(_ROOM * size / max(room * (count + 1), size * _SAME), 1.0), _MOST_MAGNIFIED)
        try:
            lost = floats - each_figure(self.figures, magnified(self.samples, times))[1]
        except ValueError:  # the function does not take what no model makes
            times, lost = 1.0, floats - made
        changed = math.sqrt(float(np.sum(lost**2)) + 0.75 * size**2)
        error = (size + changed) / (times * (count + 1))
        end = max(float(lost.mean()), 0.0) / times + error  # gains by chance do not make up for losses
        return end if self.gate.loss else end - float_value


def each_figure(figures: Figures, samples: SampleSet) -> tuple[float, NDArray[np.float64]]:
    """Return the metric of samples, and a figure of each.

    Of a metric that is one number these are the pseudo-values of the jackknife (J. Tukey, 1958): n times the
    metric less n - 1 times that without the sample, which is the figure itself where the metric is a mean.
    """
    found, count = figures(samples), len(samples.outputs)
    if isinstance(found, np.ndarray):
        return float(found.mean()), found
    if count < 2:
        return found, np.array([found])
    without = np.array([np.mean(figures(samples.without(i))) for i in range(count)])
    return found, count * found - (count - 1) * without


def magnified(samples: SampleSet, times: float) -> SampleSet:
    """Return samples whose outputs are so many times as far from those of the float model.

    Arrays of integers, and those of another shape, stay as they are.
    """
    pairs = zip(samples.expected, samples.outputs, strict=True)
    outputs = [
        {name: _magnified(expected[name], array, times) for name, array in made.items()}
        for expected, made in pairs
    ]
    return SampleSet(outputs, samples.expected, samples.inputs, samples.places)


def _magnified(expected: NDArray[np.generic], made: NDArray[np.generic], times: float) -> NDArray[np.generic]:
    if not (is_float_array(made) and is_float_array(expected) and made.shape == expected.shape):
        return made
    first, second = expected.astype(np.float64), made.astype(np.float64)
    with np.errstate(all="ignore"):
        moved = first + times * (second - first)
    return np.where(np.isfinite(moved), moved, second).astype(made.dtype)


def of_each(measure: Callable[[Outputs, Outputs], float]) -> Figures:
    """Return the figures that compare each sample with what the float model makes of it."""

    def _figures(samples: SampleSet) -> NDArray[np.float64]:
        pairs: Sequence[tuple[Outputs, Outputs]] = list(zip(samples.expected, samples.outputs, strict=True))
        return np.array([measure(*pair) for pair in pairs], np.float64)

    return _figures
