"""Sums over the rows of every layer that reads one weight: what one layer has, and how several add up.

Layers that share a weight V have rows, outputs and biases of their own. The squared error of all of them is
the sum of theirs; each bias that is free is best around the means of its own rows, so what is left to choose
is V alone, on the sum of the sums around these means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transforms.finetune.gram import Sums, total

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LayerSums:
    """Sums of each user of a weight, and whether it has a bias that may change.

    Biases of U users are [U * G, N], one user after another.
    """

    parts: tuple[Sums, ...]
    has_bias: tuple[bool, ...]

    def on_host(self) -> LayerSums:
        """Return the same sums as NumPy's arrays."""
        return LayerSums(tuple(part.on_host() for part in self.parts), self.has_bias)

    def freed(self) -> LayerSums:
        """Return the same sums with a bias for every layer."""
        return LayerSums(self.parts, (True,) * len(self.parts))

    @property
    def count(self) -> float:
        """How many rows there are."""
        return sum(part.count for part in self.parts)

    def free(self) -> Sums:
        """Return the sums that the best weights depend on: around the means where there is a bias."""
        pairs = zip(self.parts, self.has_bias, strict=True)
        return total(part.centred() if has_bias else part for part, has_bias in pairs)

    def bias(self, weights: NDArray[np.floating]) -> Floats:
        """Return the biases [U * G, N] with the least error for weights [G, N, K]; 0 where there is none."""
        pairs = zip(self.parts, self.has_bias, strict=True)
        return np.concatenate([part.bias(weights) * has_bias for part, has_bias in pairs])

    def error(self, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> Floats:
        """Return the squared error [G, N] of weights [G, N, K] and biases [U * G, N]."""
        biases = np.split(np.asarray(bias), len(self.parts))
        errors = [part.error(weights, own) for part, own in zip(self.parts, biases, strict=True)]
        return np.asarray(sum(errors[1:], errors[0]))

    def power(self) -> float:
        """Return the squares of the outputs around their means, summed up."""
        return sum(float(part.centred().yy.sum()) for part in self.parts)
