"""Rounding a layer's weights so that its outputs change least: one interface to all solvers.

The best in practice: an error around the shifted target, with the damping chosen by the caller on held-out
samples, then GPTQ, then a sweep of coordinate descent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ops.array_types import FloatArray
from ops.grids.fixed import Grid
from ops.legal_names import refuse_unknown
from ops.rounding.adaquant import adaquant, learn_scale
from ops.rounding.adaround import adaround
from ops.rounding.coordinate_descent import coordinate_descent
from ops.rounding.gptq import gptq
from ops.rounding.quadratic import LayerProblem, Quadratic, error, quadratic, shifted_target
from ops.rounding.row_space import RowProblem, RowQuadratic
from ops.subnormals import keeps_subnormals

__all__ = [
    "ALGORITHMS",
    "LayerProblem",
    "Options",
    "Quadratic",
    "RowProblem",
    "RowQuadratic",
    "adaquant",
    "adaround",
    "coordinate_descent",
    "error",
    "gptq",
    "learn_scale",
    "quadratic",
    "shifted_target",
    "solve",
    "solve_form",
]


Solver = Callable[[Quadratic | RowQuadratic, Grid, "Options"], FloatArray]


@dataclass(frozen=True)
class Options:
    """Options of solvers. ``damping``: see quadratic. ``shift``: whether to compensate for quantized inputs.

    ``sweeps`` of coordinate descent follow each algorithm; coordinate descent itself makes at least one.
    ``iterations``, ``learning_rate`` (steps of the grid for AdaQuant; None: the algorithm's own) and
    ``early_stop``, which stops when they no longer improve, are for gradient steps. Raises ValueError for
    numbers out of range.
    """

    damping: float = 0.01
    shift: bool = True
    sweeps: int = 1
    iterations: int = 1000
    learning_rate: float | None = None
    early_stop: bool = False

    def __post_init__(self) -> None:
        if self.sweeps < 0:
            raise ValueError(f"sweeps {self.sweeps} is negative")
        if self.iterations < 1:
            raise ValueError(f"iterations {self.iterations} is below 1")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(f"learning rate {self.learning_rate:g} is not positive")


@keeps_subnormals
def solve(problem: LayerProblem, grid: Grid, algorithm: str, options: Options | None = None) -> FloatArray:
    """Return weights [..., N, K] on the grid with a small error, by one of ALGORITHMS.

    Raises ValueError for an unknown algorithm and a damping that is not positive.
    """
    chosen = options or Options()
    return solve_form(quadratic(problem, chosen.damping, shift=chosen.shift), grid, algorithm, chosen)


@keeps_subnormals
def solve_form(
    form: Quadratic | RowQuadratic, grid: Grid, algorithm: str, options: Options | None = None
) -> FloatArray:
    """Return weights as ``solve`` does, for a form whose damping and shift are already chosen."""
    refuse_unknown(algorithm, ALGORITHMS, "algorithm")
    chosen = options or Options()
    weights = ALGORITHMS[algorithm](form, grid, chosen)
    return coordinate_descent(form, grid, weights, sweeps=chosen.sweeps)


def _stepped(solver: Callable[..., FloatArray]) -> Solver:
    """Return an iterative solver with the signature of the others, and its own rate as the default."""

    def _solve(form: Quadratic | RowQuadratic, grid: Grid, options: Options) -> FloatArray:
        rate = {} if options.learning_rate is None else {"learning_rate": options.learning_rate}
        return solver(form, grid, iterations=options.iterations, early_stop=options.early_stop, **rate)

    return _solve


ALGORITHMS: Mapping[str, Solver] = MappingProxyType(
    {
        "adaquant": _stepped(adaquant),
        "adaround": _stepped(adaround),
        "coordinate_descent": lambda form, grid, _: coordinate_descent(form, grid, grid.round(form.target)),
        "gptq": lambda form, grid, _: gptq(form, grid),
    }
)
