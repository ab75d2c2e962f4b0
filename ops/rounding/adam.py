"""Adam (arXiv 1412.6980) on one array, in few passes over memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ops.array_types import Float32Array

_FIRST, _SECOND = 0.9, 0.999
_TINY = np.float32(1e-30)  # variables whose gradient was always zero do not move


def step_factor(count: ArrayLike) -> Float32Array:
    """Return the factor on the ratio of the averages in each step; ``count`` is 1 for the first.

    It includes the factors (1 - beta), which the averages lack, and the bias correction.
    """
    steps = np.asarray(count, np.float64)
    first = (1 - _FIRST) / (1 - _FIRST**steps)
    second = (1 - _SECOND) / (1 - _SECOND**steps)
    return np.asarray(first / np.sqrt(second), np.float32)


class Adam:
    """The moving averages of an array's gradient and of its square."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Initialize the moments to zero."""
        self._mean = np.zeros(shape, np.float32)
        self._square = np.full(shape, _TINY)
        self._scratch = np.empty(shape, np.float32)
        self._steps = 0

    def descend(self, variables: Float32Array, gradient: Float32Array, step_size: Float32Array) -> None:
        """Move variables against their gradient, in place; the gradient is overwritten.

        ``step_size`` is the distance that a constant gradient moves them. A scalar saves a pass.
        """
        self._steps += 1
        self._mean *= np.float32(_FIRST)
        self._mean += gradient
        gradient *= gradient
        self._square *= np.float32(_SECOND)
        self._square += gradient
        np.sqrt(self._square, out=self._scratch)
        np.divide(self._mean, self._scratch, out=self._scratch)
        factor = step_factor(self._steps)
        if step_size.ndim:
            self._scratch *= step_size
            self._scratch *= factor
        else:
            self._scratch *= step_size * factor
        variables -= self._scratch
