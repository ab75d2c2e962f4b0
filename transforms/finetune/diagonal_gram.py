"""Sums over rows for layers whose Gram matrix would be too large: inputs count as independent of each other.

With weights that differ by D from the float ones, and means m and variances v of the inputs, the squared
error of an output over n rows is then n (sum v D^2 + (D m + d)^2), d being the difference of the biases.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.finetune.gram import GramStats


@dataclass
class DiagonalStats(GramStats):
    """Sums as in GramStats, but ``xx`` is [G, K] and ``yx`` is none; ``weight`` [G, N, K] is float."""

    weight: Float64Array

    @classmethod
    def of_weight(cls, weight: NDArray[np.floating]) -> DiagonalStats:
        """Return the sums over no rows for a layer with a float weight [G, N, K]."""
        groups, outputs, inputs = weight.shape
        x, y = np.zeros((groups, inputs)), np.zeros((groups, outputs))
        return cls(0.0, x, y, x.copy(), np.zeros((groups, outputs, 0)), y.copy(), np.asarray(weight))

    def on_host(self) -> DiagonalStats:
        """As of GramStats."""
        return self

    def add(
        self, x: NDArray[np.floating], y: NDArray[np.floating], weights: Float64Array | None = None
    ) -> None:
        """As of GramStats."""
        finite = np.isfinite(x).all((0, 2)) & np.isfinite(y).all((0, 2))
        counts = (finite if weights is None else np.where(finite, weights, 0)).astype(np.float64)
        rows, made = (np.where(finite[:, None], part, 0).astype(np.float64) for part in (x, y))
        self.count += float(counts.sum())
        self.x += counts @ rows
        self.y += counts @ made
        self.xx += counts @ np.square(rows)
        self.yy += counts @ np.square(made)

    def __add__(self, other: GramStats) -> DiagonalStats:
        """As of GramStats; both belong to one weight."""
        return dataclasses.replace(
            self,
            count=self.count + other.count,
            **{name: getattr(self, name) + getattr(other, name) for name in ("x", "y", "xx", "yy")},
        )

    def of_layer(self, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> DiagonalStats:
        """As of GramStats."""
        y = (weights @ self.x[..., None])[..., 0] + self.count * bias
        return dataclasses.replace(self, y=np.asarray(y, np.float64))

    def centred(self) -> DiagonalStats:
        """As of GramStats."""
        n = max(self.count, np.finfo(np.float64).tiny)
        parts: dict[str, Any] = {"x": np.zeros_like(self.x), "y": np.zeros_like(self.y)}
        parts |= {"xx": self.xx - self.x * self.x / n, "yy": self.yy - self.y * self.y / n}
        return dataclasses.replace(self, **parts)

    def error(self, weights: NDArray[np.floating], bias: NDArray[np.floating] | None = None) -> Float64Array:
        """As of GramStats."""
        n = max(self.count, np.finfo(np.float64).tiny)
        spread = np.square(weights - self.weight) @ self.centred().xx[..., None]
        offset = 0.0 if bias is None else self.bias(weights) - bias
        return np.asarray(spread[..., 0] + n * np.square(offset))
