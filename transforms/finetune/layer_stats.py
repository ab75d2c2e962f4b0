"""Statistics of a layer's rows, or of several layers that share a weight: sums, or the rows themselves.

Rows of a layer with many inputs are kept unchanged while they are fewer than the inputs: their Gram matrix
would be larger, and solving with it would take the cube of the inputs. Held-out rows, which only give
errors, are kept up to twice as many: products with them, in their dtype, take a fraction of the time of the
sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array, FloatArray
from ops.rounding.row_space import RowProblem
from transforms.finetune.gram import GramStats, finite_rows

LEAST_INPUTS = 2048
"""Inputs above which rows are kept: up to there a Gram matrix takes at most 32 MiB."""


HELD_ROWS = 2
"""Held-out rows per input up to which they are kept."""


@dataclass
class RowStats:
    """Rows x [G, R, K] with outputs y [G, R, N], float32 or float64; up to ``most`` are kept."""

    x_rows: FloatArray
    y_rows: FloatArray
    most: int

    @classmethod
    def zeros(cls, groups: int, outputs: int, inputs: int, most: int | None = None) -> RowStats:
        """Return an empty set of rows; fewer than ``most`` are kept, by default as many as inputs."""
        x, y = (np.zeros((groups, 0, size), np.float32) for size in (inputs, outputs))
        return cls(x, y, inputs if most is None else most)

    @property
    def count(self) -> float:
        """The number of rows."""
        return float(self.x_rows.shape[1])

    @property
    def xx(self) -> Float64Array:
        """The Gram matrix [G, K, K], for users that need all of it."""
        rows = self.x_rows.astype(np.float64)
        return rows.transpose(0, 2, 1) @ rows

    @property
    def yx(self) -> Float64Array:
        """The sum of y x^T [G, N, K]."""
        return self.y_rows.astype(np.float64).transpose(0, 2, 1) @ self.x_rows.astype(np.float64)

    @property
    def importance(self) -> Float64Array:
        """The sum of squares of each input, [G, K]."""
        return np.asarray(np.square(self.x_rows, dtype=np.float64).sum(1))

    def add(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> None:
        """As in GramStats."""
        finite = finite_rows(x, y)
        self.x_rows, self.y_rows = _joined(self.x_rows, x, finite), _joined(self.y_rows, y, finite)

    def settled(self) -> GramStats | RowStats:
        """Return the sums over the rows once there are too many, else the rows."""
        return self if self.x_rows.shape[1] < self.most else self.summed()

    def summed(self) -> GramStats:
        """Return the sums over the rows."""
        groups, _, inputs = self.x_rows.shape
        sums = GramStats.zeros(groups, self.y_rows.shape[2], inputs)
        sums.add(self.x_rows, self.y_rows)
        return sums

    def joined(self, other: RowStats) -> RowStats:
        """Return the rows of both."""
        merged = replace(self)
        merged.add(other.x_rows, other.y_rows)
        return merged

    def of_outputs(self, part: slice) -> RowStats:
        """As in GramStats."""
        return replace(self, y_rows=self.y_rows[:, :, part])

    def on_host(self) -> RowStats:
        """As in GramStats."""
        return self

    def of_layer(self, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> RowStats:
        """As in GramStats."""
        outputs = self.x_rows.astype(np.float64) @ np.asarray(weights, np.float64).transpose(0, 2, 1)
        return replace(self, y_rows=outputs + np.asarray(bias, np.float64)[:, None])

    def centred(self) -> RowStats:
        """As in GramStats."""
        x, y = (part - _mean(part)[:, None] for part in (self.x_rows, self.y_rows))
        return replace(self, x_rows=x, y_rows=y)

    def bias(self, weights: NDArray[np.floating]) -> Float64Array:
        """As in GramStats."""
        return _mean(self._missed(weights))

    def error(self, weights: NDArray[np.floating], bias: NDArray[np.floating] | None = None) -> Float64Array:
        """As in GramStats, with the precision of the rows."""
        missed = self._missed(weights)
        missed -= (_mean(missed) if bias is None else np.asarray(bias))[:, None].astype(missed.dtype)
        return np.asarray(np.square(missed, out=missed).sum(1, dtype=np.float64))

    @property
    def yy(self) -> Float64Array:
        """The sum of squares of each output, [G, N]."""
        return np.asarray(np.square(self.y_rows, dtype=np.float64).sum(1))

    def problem(self, weights: FloatArray) -> RowProblem:
        """As in GramStats."""
        parts = (part.astype(np.float64) for part in (weights, self.x_rows, self.y_rows))
        return RowProblem(*parts)

    @property
    def solver(self) -> None:
        """As in GramStats."""
        return None

    def _missed(self, weights: NDArray[np.floating]) -> FloatArray:
        """Return the outputs minus the prediction of weights."""
        predicted = self.x_rows @ np.asarray(weights, self.x_rows.dtype).transpose(0, 2, 1)
        return np.subtract(self.y_rows, predicted, out=predicted)


def _joined(rows: FloatArray, others: NDArray[np.floating], chosen: NDArray[np.bool_]) -> FloatArray:
    """Concatenate rows and the chosen rows of others, in float32 or wider."""
    added = others if chosen.all() else others[:, chosen]
    return np.concatenate([rows, added], 1, dtype=np.result_type(np.float32, others))


def _mean(rows: NDArray[np.floating]) -> Float64Array:
    """Return the mean [G, K] of rows [G, R, K], 0 if there are none."""
    return np.asarray(rows.sum(1, dtype=np.float64) / max(rows.shape[1], 1))


LayerStats = GramStats | RowStats
"""Sums over the rows of a layer, or its rows while they are few."""


def total(stats: Iterable[LayerStats]) -> LayerStats:
    """Return the sums over the rows of all; there must be at least one."""
    parts = [*stats]
    rows = [part for part in parts if isinstance(part, RowStats)]
    if len(rows) == len(parts):
        return reduce(RowStats.joined, rows).settled()
    return reduce(add, [part.summed() if isinstance(part, RowStats) else part for part in parts])


@dataclass(frozen=True)
class SharedGramStats:
    """Sums of each user of a weight, and whether it has a bias that may change.

    Biases of U users are [U * G, N], one user after another.
    """

    parts: tuple[LayerStats, ...]
    has_bias: tuple[bool, ...]

    def freed(self) -> SharedGramStats:
        """Return the same sums with a free bias for every layer."""
        return SharedGramStats(self.parts, (True,) * len(self.parts))

    @property
    def count(self) -> float:
        """The number of rows."""
        return sum(part.count for part in self.parts)

    def joined(self, other: SharedGramStats) -> SharedGramStats:
        """Return the sums over the rows of both, of the same users."""
        pairs = zip(self.parts, other.parts, strict=True)
        return replace(self, parts=tuple(total(pair) for pair in pairs))

    def free(self) -> LayerStats:
        """Return the sums that determine the best weights: around the means if there is a bias."""
        pairs = zip(self.parts, self.has_bias, strict=True)
        return total(part.centred() if has_bias else part for part, has_bias in pairs)

    def bias(self, weights: NDArray[np.floating]) -> Float64Array:
        """Return the biases [U * G, N] of least error for weights [G, N, K]; 0 for users without one."""
        pairs = zip(self.parts, self.has_bias, strict=True)
        return np.concatenate([part.bias(weights) * has_bias for part, has_bias in pairs])

    def error(self, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> Float64Array:
        """Return the squared error [G, N] of weights [G, N, K] and biases [U * G, N]."""
        biases = np.split(np.asarray(bias), len(self.parts))
        errors = [part.error(weights, bias_part) for part, bias_part in zip(self.parts, biases, strict=True)]
        return np.asarray(sum(errors[1:], errors[0]))

    def of_outputs(self, part: slice) -> SharedGramStats:
        """Return the sums for some of the outputs."""
        return SharedGramStats(tuple(stats.of_outputs(part) for stats in self.parts), self.has_bias)

    def power(self) -> float:
        """Return the sum of squares of the outputs around their means."""
        return sum(float(part.centred().yy.sum()) for part in self.parts)
