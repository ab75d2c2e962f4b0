"""Small layers with inputs that depend on each other, for tests of solvers, and all their roundings."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.grids.fixed import Grid
from ops.rounding import LayerProblem, Quadratic


def make_samples(inputs: int, *, groups: tuple[int, ...] = (), rows: int = 0, seed: int = 0) -> Float64Array:
    """Return centred rows of inputs [..., rows, K] that share a few causes."""
    generator = np.random.default_rng(seed)
    rows = rows or 8 * inputs + 16
    causes = generator.standard_normal((*groups, rows, 1 + inputs // 4))
    mixing = generator.standard_normal((*groups, 1 + inputs // 4, inputs))
    samples = causes @ mixing + 0.3 * generator.standard_normal((*groups, rows, inputs))
    return samples - samples.mean(-2, keepdims=True)


def make_layer(
    shape: tuple[int, ...], *, noise: float = 0.1, seed: int = 0
) -> tuple[NDArray[np.float32], LayerProblem]:
    """Return a weight [..., N, S, C] and its problem, inputs being rounded coarsely (``noise``)."""
    generator = np.random.default_rng(seed)
    *groups, outputs, positions, channels = shape
    weight = generator.standard_normal(shape).astype(np.float32)
    flat = weight.reshape(*groups, outputs, positions * channels).astype(np.float64)
    wanted = make_samples(positions * channels, groups=tuple(groups), seed=seed)
    seen = wanted + noise * generator.standard_normal(wanted.shape)
    outputs_wanted = wanted @ np.swapaxes(flat, -1, -2)
    return weight, problem_of(flat, seen, outputs_wanted)


def problem_of(weight: Float64Array, seen: Float64Array, wanted: Float64Array) -> LayerProblem:
    """Return the sums over rows of inputs [..., rows, K] and wanted outputs [..., rows, N]."""
    gram = np.swapaxes(seen, -1, -2) @ seen
    return LayerProblem(weight, gram, np.swapaxes(wanted, -1, -2) @ seen, float(np.sum(wanted**2)))


def best_rounding(form: Quadratic, numbers: list[list[float]]) -> float:
    """Return the least error of one output [1, K], all combinations of the numbers of each input tried."""
    combinations = np.array(list(product(*numbers)))
    difference = combinations - form.target[0]
    return float(np.sum(difference * (difference @ form.hessian), axis=1).min())


def all_numbers(grid: Grid, inputs: int, most: float) -> list[list[float]]:
    """Return the numbers up to a magnitude that a grid of one output has, for each input."""
    dense = np.linspace(-most, most, 20001)
    return [sorted(set(nearest(grid, dense[:, None], j)[:, 0].tolist())) for j in range(inputs)]


def nearest(grid: Grid, values: Float64Array, j: int) -> Float64Array:
    """Return the numbers of the grid nearest to values [..., N] of input ``j``, halves to even."""
    i = j if len(grid.columns[0]) > 1 else 0
    return Grid(*(part[i] for part in grid.columns), grid.element).round(values)
