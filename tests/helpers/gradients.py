"""Gradients held against central differences of the loss along a random direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from examples.training.layers import Array


def slopes(
    loss: Callable[[dict[str, Array]], float],
    parameters: Mapping[str, Array],
    gradient: Array,
    name: str,
    random: np.random.Generator,
    distance: float,
) -> tuple[float, float]:
    """Return the slope of a loss along a direction of one parameter, in float64, and what a gradient says."""
    direction = random.standard_normal(parameters[name].shape)
    ends = ({**parameters, name: parameters[name] + sign * distance * direction} for sign in (1, -1))
    above, below = map(loss, ends)
    return (above - below) / (2 * distance), float((gradient * direction).sum())


def in_float64(parameters: Mapping[str, Array]) -> dict[str, Array]:
    """Return parameters in which differences are not rounding."""
    return {name: value.astype(np.float64) for name, value in parameters.items()}
