"""Rounding a layer's weights so that its outputs change least: one front for all solvers.

The recipe that does best in practice: an error around the shifted target, with damping chosen by the caller
on samples that the sums do not hold, GPTQ on it, and a sweep of coordinate descent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ops.coordinate_descent import coordinate_descent
from ops.fixed_grid import Floats, Grid
from ops.gptq import gptq
from ops.quadratic import LayerProblem, Quadratic, error, quadratic, shifted_target

__all__ = [
    "ALGORITHMS",
    "LayerProblem",
    "Options",
    "Quadratic",
    "coordinate_descent",
    "error",
    "gptq",
    "quadratic",
    "shifted_target",
    "solve",
]


@dataclass(frozen=True)
class Options:
    """How to solve. ``damping``: see quadratic. ``shift``: whether to make up for quantized inputs.

    ``sweeps`` of coordinate descent.
    """

    damping: float = 0.01
    shift: bool = True
    sweeps: int = 1


def solve(problem: LayerProblem, grid: Grid, algorithm: str, options: Options | None = None) -> Floats:
    """Return weights [..., N, K] on the grid with a small error, by one of ALGORITHMS.

    Raises ValueError for an unknown algorithm and a damping that is not positive.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm '{algorithm}' is unknown, legal are {', '.join(ALGORITHMS)}")
    chosen = options or Options()
    return ALGORITHMS[algorithm](quadratic(problem, chosen.damping, shift=chosen.shift), grid, chosen)


def _gptq(form: Quadratic, grid: Grid, options: Options) -> Floats:
    return coordinate_descent(form, grid, gptq(form, grid), sweeps=options.sweeps)


def _coordinate_descent(form: Quadratic, grid: Grid, options: Options) -> Floats:
    return coordinate_descent(form, grid, grid.round(form.target), sweeps=max(1, options.sweeps))


ALGORITHMS: Mapping[str, Callable[[Quadratic, Grid, Options], Floats]] = MappingProxyType(
    {"gptq": _gptq, "coordinate_descent": _coordinate_descent}
)
