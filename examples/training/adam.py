"""Gradient steps of the Adam method, with decay of the weights apart from it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from examples.training.layers import Array

STEP, DECAY = 3e-3, 1e-3  # the largest step; the decay of weights apart from gradients (arXiv 1711.05101)
MEAN_DECAY, SQUARE_DECAY, TINY = 0.9, 0.999, 1e-8  # the names of Adam's constants are beta1, beta2, epsilon


class Adam:
    """Gradient steps scaled by running means of the gradients and their squares (arXiv 1412.6980)."""

    def __init__(self, parameters: Mapping[str, Array]) -> None:
        """Start without any history."""
        self.means = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.squares = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.count = 0

    def improve(
        self, parameters: Mapping[str, Array], gradients: Mapping[str, Array], step: float
    ) -> dict[str, Array]:
        """Return those parameters that have a gradient, one step further."""
        self.count += 1
        return {
            name: (parameters[name] - step * self._direction(parameters, name, gradient)).astype(np.float32)
            for name, gradient in gradients.items()
        }

    def _direction(self, parameters: Mapping[str, Array], name: str, gradient: Array) -> Array:
        self.means[name] = MEAN_DECAY * self.means[name] + (1 - MEAN_DECAY) * gradient
        self.squares[name] = SQUARE_DECAY * self.squares[name] + (1 - SQUARE_DECAY) * gradient**2
        mean = self.means[name] / (1 - MEAN_DECAY**self.count)
        root = np.sqrt(self.squares[name] / (1 - SQUARE_DECAY**self.count))
        return mean / (root + TINY) + DECAY * parameters[name]


def cosine(steps: int) -> Array:
    """Return the size of each step: from ``STEP`` to zero along half a cosine."""
    return STEP * (1 + np.cos(np.linspace(0, np.pi, steps))) / 2
