"""A gate: a bound of a metric, by name or of the user, that a model must meet to be written.

The metric gives a figure for each sample, of the model and of the float model on the same samples, so the
standard error of the loss excludes the scatter of the samples themselves.

Figures such as "the answer is right" do not change on most samples: 16 samples without a change do not tell
whether one in 20 or one in 1000 changes elsewhere. If fewer than half of the samples change, the errors of
the outputs are therefore magnified, and the loss is divided by the same factor: the share of answers that
flip is proportional to small errors.
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
"""Largest magnification of errors, 24 dB: the effect of larger errors says little of that of small ones."""

_ROOM = 4.0
"""Errors are magnified until about so many lost samples are within the bound: fewer tell little."""

_SAME = 1e-9


class GateError(TargetError):
    """A model does not meet a gate; no file is written."""


@dataclass(frozen=True)
class Gate(Target):
    """A lower bound of the metric named ``metric``, or with ``loss`` an upper bound of its loss.

    ``figures``: returns the figures of samples; None for the SQNR, which is one figure of all samples.
    ``whole``: outputs of all types count, unchanged, not only those that are compared. ``scatters``: whether
    figures of the float model itself differ from sample to sample, as those with labels do. ``places``: of
    the judging samples in the data.
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
        """The bounded quantity, for messages."""
        return f"loss of {self.metric}" if self.loss else super().words

    @property
    def bound(self) -> str:
        """The limit in words; empty if any model passes."""
        return super().bound if math.isfinite(self.limit) else ""

    def unmet(self, text: str) -> TargetError:
        """Return the error for a model that misses the bound."""
        return GateError(text)

    def scored(self, samples: SampleSet) -> Scored:
        """Return the metric of samples, or its loss, with the standard error."""
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
        (metric, figures), (float_metric, float_figures) = self._of_model, self._of_float
        value, each = (
            (float_metric - metric, float_figures - figures) if self.gate.loss else (-metric, -figures)
        )
        error = float(np.std(each, ddof=1) / math.sqrt(count)) if count > 1 else 0.0
        if self.gate.scatters and not self.gate.loss and error <= _SAME * abs(value):
            error = abs(value) / (count + 1)  # as if one more sample had the figure 0
        end = max(value + error, self._magnified_end(value))
        return Scored(value if self.gate.loss else -value, max(error, end - value), count)

    @cached_property
    def _of_float(self) -> tuple[float, NDArray[np.float64]]:
        return each_figure(self.figures, self.samples.of_float())

    @cached_property
    def _of_model(self) -> tuple[float, NDArray[np.float64]]:
        return each_figure(self.figures, self.samples)

    def _magnified_end(self, value: float) -> float:
        """Return the upper end of the loss by magnified errors, minus the float metric for a metric.

        The number of samples that change, k, is small: its upper end of one standard error is
        k + 1 + sqrt(k + 3/4) (N. Gehrels, 1986, equation 7). Returns -inf if half of the samples change.
        """
        (float_value, floats), (_, figures), count = self._of_float, self._of_model, len(self.samples.outputs)
        size = max(abs(floats).max(), abs(figures).max(), np.finfo(float).tiny)
        if 2 * np.count_nonzero(abs(floats - figures) > _SAME * size) >= count:
            return -math.inf
        room = self.gate.limit if self.gate.loss else float_value - self.gate.limit
        times = min(max(_ROOM * size / max(room * (count + 1), size * _SAME), 1.0), _MOST_MAGNIFIED)
        try:
            lost = floats - each_figure(self.figures, magnified(self.samples, times))[1]
        except ValueError:  # the function refuses magnified outputs
            times, lost = 1.0, floats - figures
        changed = math.sqrt(float(np.sum(lost**2)) + 0.75 * size**2)
        error = (size + changed) / (times * (count + 1))
        end = max(float(lost.mean()), 0.0) / times + error  # a gain by chance counts as none
        return end if self.gate.loss else end - float_value


def each_figure(figures: Figures, samples: SampleSet) -> tuple[float, NDArray[np.float64]]:
    """Return the metric of samples, and a figure of each, [samples].

    For a metric that is one number, the figures are the pseudo-values of the jackknife (J. Tukey, 1958): n
    times the metric minus n - 1 times the metric without the sample. For a mean they are its terms.
    """
    metric, count = figures(samples), len(samples.outputs)
    if isinstance(metric, np.ndarray):
        return float(metric.mean()), metric
    if count < 2:
        return metric, np.array([metric])
    without = np.array([np.mean(figures(samples.without(i))) for i in range(count)])
    return metric, count * metric - (count - 1) * without


def magnified(samples: SampleSet, times: float) -> SampleSet:
    """Return samples whose output errors against the float model are multiplied by ``times``.

    Arrays of integers, and those of another shape, are not changed.
    """
    pairs = zip(samples.expected, samples.outputs, strict=True)
    outputs = [
        {name: _magnified(expected[name], array, times) for name, array in sample.items()}
        for expected, sample in pairs
    ]
    return SampleSet(outputs, samples.expected, samples.inputs, samples.places)


def _magnified(
    expected: NDArray[np.generic], output: NDArray[np.generic], times: float
) -> NDArray[np.generic]:
    if not (is_float_array(output) and is_float_array(expected) and output.shape == expected.shape):
        return output
    first, second = expected.astype(np.float64), output.astype(np.float64)
    with np.errstate(all="ignore"):
        moved = first + times * (second - first)
    return np.where(np.isfinite(moved), moved, second).astype(output.dtype)


def of_each(measure: Callable[[Outputs, Outputs], float]) -> Figures:
    """Return figures that compare the outputs of each sample with those of the float model."""

    def _figures(samples: SampleSet) -> NDArray[np.float64]:
        pairs: Sequence[tuple[Outputs, Outputs]] = list(zip(samples.expected, samples.outputs, strict=True))
        return np.array([measure(*pair) for pair in pairs], np.float64)

    return _figures
