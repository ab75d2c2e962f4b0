"""Metrics of a model's outputs against the float model over a set of samples, as one number.

Outputs of floating types are compared, all of a sample as one vector; an output of another shape than in the
float model counts as NaN. NaN and infinities give the worst value of the metric, never NaN; but the same
infinity in both models is a mask, not an error. Sums are in float64, sample after sample, so that no sample
has to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.metrics import Sums, total

Outputs = Mapping[str, NDArray[Any]]
"""Outputs of one sample by name."""

OutputsPair = tuple[Outputs, Outputs]
"""Outputs of the float model and of the other model, for one sample."""

_SUM_SLACK = 2.0**-8
"""Tolerance of the sum of probabilities in bfloat16: half a unit in the last place of each."""

_LEAST_SHARE = 2.0**-24
"""Half the distance from 1 to the next float32: smaller probabilities, zero above all, count as this."""


@dataclass(frozen=True)
class Metric:
    """A metric of a model's outputs.

    ``worst``: its value if it is undefined. ``error``: converts a value to a number from 0, larger is worse,
    which is additive over independent errors (approximately for cosine and top1). ``measure``: returns the
    value over samples, NaN if it is undefined.
    """

    name: str
    unit: str
    larger_is_better: bool
    worst: float
    error: Callable[[float], float]
    measure: Callable[[Iterable[OutputsPair]], float]

    def score(self, pairs: Iterable[OutputsPair]) -> float:
        """Return the metric of samples; ValueError without samples, and without a floating output."""
        value = self.measure(_some(pairs))
        return self.worst if math.isnan(value) else value


def lost_top1(pairs: Iterable[OutputsPair], labels: NDArray[np.integer[Any]] | None = None) -> float:
    """Return the share of rows that the float model answers correctly and the other model does not.

    A row extends along the last axis; the index of its largest element is the answer. Correct answers are
    ``labels``, integers of shape [n] for the rows in order, by default those of the float model. Rows that
    become correct by chance do not compensate for lost ones: chance differs on other samples, and a bound of
    this share bounds the drop of accuracy there, too. Raises ValueError for labels that do not fit.
    """
    expected, answers = _answers(_some(pairs))
    if labels is None:
        right = expected >= 0
    else:
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise ValueError(f"labels must be integers of shape [n], not {labels.dtype} {list(labels.shape)}")
        if len(labels) != len(expected):
            raise ValueError(f"{len(labels)} labels for {len(expected)} rows of results")
        right = expected == labels
    return float(np.mean(right & (answers != expected))) if len(right) else 0.0


def least_sqnr(pairs: Iterable[OutputsPair]) -> float:
    """Return the SQNR in dB of the worst output, each over all samples.

    The SQNR of all outputs together would hide errors of a small output next to a large one. Raises
    ValueError without samples, and for an output that is not of a floating type.
    """
    return least_of([sums_of(pair) for pair in _some(pairs)])


def sums_of(pair: OutputsPair) -> dict[str, Sums]:
    """Return the sums of each output of a sample; ValueError for one that is not of a floating type."""
    expected, outputs = pair
    sums = {name: Sums() for name in expected}
    for name, totals in sums.items():
        _add(totals, ({name: expected[name]}, outputs))
    return sums


def least_of(samples: Sequence[Mapping[str, Sums]]) -> float:
    """Return the SQNR in dB of the worst output, each over all samples, from the sums of each sample."""
    values = [total(sums[name] for sums in samples).sqnr() for name in samples[0]]
    return min(METRICS["sqnr"].worst if math.isnan(value) else value for value in values)


def lost_rows(pair: OutputsPair) -> tuple[int, int]:
    """Return the number of rows of a sample whose answer differs from the float model's, and of all rows."""
    expected, answers = _answers([pair])
    return int(np.sum((expected >= 0) & (answers != expected))), len(expected)


def share_of_rows(samples: Sequence[tuple[int, int]]) -> float:
    """Return the share of lost rows from the counts of each sample; 0 without rows."""
    lost, rows = (sum(counts) for counts in zip(*samples, strict=True))
    return lost / rows if rows else 0.0


def _mean_of(measure: Callable[[Sums], float]) -> Callable[[Iterable[OutputsPair]], float]:
    """Return a measure: the mean of ``measure`` over samples."""
    return lambda pairs: _mean([measure(_sums([pair])) for pair in pairs])


def _kl(pairs: Iterable[OutputsPair]) -> float:
    rows = [_divergences(f, q) for pair in pairs for f, q in _floats(pair) if f.size]
    return _mean(np.concatenate(rows).tolist() if rows else [0.0])


def _top1(pairs: Iterable[OutputsPair]) -> float:
    expected, answers = _answers(pairs)
    return float(np.mean(expected == answers)) if len(expected) else 1.0


def _decibels_to_share(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.power(10.0, -value / 10))


def _square(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.square(np.float64(value)))


def _missing(value: float) -> float:
    return max(0.0, 1.0 - value)


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("l2", "", False, math.inf, _square, _mean_of(Sums.l2)),
            Metric("sqnr", "dB", True, -math.inf, _decibels_to_share, lambda pairs: _sums(pairs).sqnr()),
            Metric("cosine", "", True, 0.0, _missing, _mean_of(Sums.cosine)),
            Metric("kl", "nat", False, math.inf, lambda value: max(0.0, value), _kl),
            Metric("psnr", "dB", True, -math.inf, _decibels_to_share, lambda pairs: _sums(pairs).psnr()),
            Metric("top1", "", True, 0.0, _missing, _top1),
        )
    }
)
"""All metrics by name.

* ``l2``: mean over samples of the L2 norm of the difference, in the unit of the outputs;
* ``sqnr``: 10 log10(sum f^2 / sum (f - q)^2) over all samples;
* ``cosine``: mean over samples of the cosine of the angle between the vectors;
* ``kl``: mean over rows (along the last axis) of KL(p || q), p being the outputs themselves if they are
  distributions, else their softmax;
* ``psnr``: as sqnr, with the largest magnitude of all samples in place of the signal;
* ``top1``: share of rows whose largest element has the same index as in the float model.
"""


def in_words(metric: str, value: float, error: float = 0.0) -> str:
    """Return a value in words, with its standard error, if there is one, and the unit of the metric."""
    unit = METRICS[metric].unit if metric in METRICS else ""
    spread = f" +- {error:.2g}" if error else ""
    return f"{value:.6g}{spread} {unit}".rstrip()


def _some(pairs: Iterable[OutputsPair]) -> Iterator[OutputsPair]:
    rest = iter(pairs)
    first = next(rest, None)
    if first is None:
        raise ValueError("there are no samples to measure on")
    return chain([first], rest)


def _floats(pair: OutputsPair) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    expected, outputs = pair
    names = [name for name, array in expected.items() if is_float_array(array)]
    if not names:
        types = ", ".join(f"'{name}' of {array.dtype}" for name, array in expected.items())
        raise ValueError(f"no output is of a floating type: {types or 'sequences alone'}")
    for name in names:
        f, q = expected[name], outputs[name]
        yield f, q if q.shape == f.shape else np.full(f.shape, np.nan)


def is_float_array(array: object) -> bool:
    """Return whether an output is an array of a floating type, bfloat16 included, and not a sequence."""
    return isinstance(array, np.ndarray) and (array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def _sums(pairs: Iterable[OutputsPair]) -> Sums:
    totals = Sums()
    for pair in pairs:
        _add(totals, pair)
    return totals


def _add(totals: Sums, pair: OutputsPair) -> None:
    for f, q in _floats(pair):
        alike = _are_masked(f, q)
        totals.add(f[~alike], q[~alike]) if alike.any() else totals.add(f, q)


def _are_masked(f: NDArray[Any], q: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where two arrays have the same infinity."""
    return np.asarray(np.isinf(f) & (f == q))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _rows(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64).reshape(-1, array.shape[-1] if array.ndim else 1)


def _answers(pairs: Iterable[OutputsPair]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the index of the largest element of each row in both models, -1 and -2 in rows with NaN."""
    expected, answers = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
    for pair in pairs:
        for f, q in _floats(pair):
            if f.size:
                expected.append(_largest(f, -1))
                answers.append(_largest(q, -2))
    return np.concatenate(expected), np.concatenate(answers)


def _largest(array: NDArray[Any], otherwise: int) -> NDArray[np.intp]:
    rows = _rows(array)
    return np.where(np.isnan(rows).any(axis=1), otherwise, rows.argmax(axis=1))


def _divergences(f: NDArray[Any], q: NDArray[Any]) -> NDArray[np.float64]:
    from ops.divergence import log_softmax

    x, y = _rows(f), _rows(q)
    with np.errstate(all="ignore"):
        probable = bool((x >= 0).all() and (abs(x.sum(axis=1) - 1) <= _SUM_SLACK).all())
        log_p, log_q = (_log_shares(z) if probable else log_softmax(z) for z in (x, y))
        terms = np.exp(log_p) * (log_p - log_q)
        divergence = np.where(_are_masked(x, y), 0, terms).sum(axis=1)
    return np.maximum(divergence, 0.0)  # below zero by rounding only


def _log_shares(x: NDArray[np.float64]) -> NDArray[np.float64]:
    clipped = np.maximum(x, _LEAST_SHARE)
    return np.log(clipped / clipped.sum(axis=1, keepdims=True))
