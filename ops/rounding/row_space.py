"""The objective of tuning with fewer rows than inputs: rows replace Gram matrices.

With R rows x of K inputs, H = X^T X + d I is determined by X [R, K]. Solutions of systems with H follow from
X X^T + d I [R, R] (the push-through identity), and so do the factors of H that GPTQ needs: with P_j the
inverse of d I + sum_{i >= j} x_i x_i^T, x_i being the column of X of input i, the factor U of H = U D U^T is
U_ij = x_i P_j x_j for i < j. P is updated from the last block of inputs to the first (Woodbury identity).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.rounding.factors import unit_upper
from ops.rounding.input_order import BLOCK
from ops.subnormals import keeps_subnormals


class Objective(ABC):
    """The squared error of a layer's outputs as a function of its weights, which solvers lower."""

    @abstractmethod
    def row_errors(self, weights: Float64Array) -> Float64Array:
        """Return the error of each output's weights [..., N, K]: [..., N, 1]."""

    @keeps_subnormals
    def error(self, weights: Float64Array) -> float:
        """Return the error of weights [..., N, K]."""
        return float(self.row_errors(weights).sum())


@dataclass(frozen=True)
class RowProblem:
    """A layer: its float ``weight`` [..., N, K], ``rows`` [..., R, K] of inputs and ``outputs`` [..., R, N].

    Rows are centred if a bias will absorb the means, and multiplied by the square root of their weight.
    """

    weight: Float64Array
    rows: Float64Array
    outputs: Float64Array

    @keeps_subnormals
    def form(self, damping: float, *, shift: bool) -> RowQuadratic:
        """Return the error around the shifted target, or around the float weights; see quadratic."""
        squares = np.square(self.rows).sum((-2, -1)) / self.rows.shape[-1]
        amount = damping * np.where(squares > 0, squares, 1.0)[..., None, None]
        if not shift:
            return RowQuadratic(self.weight, self.rows, amount)
        residual = self.outputs - self.rows @ np.swapaxes(self.weight, -1, -2)
        gram = self.rows @ np.swapaxes(self.rows, -1, -2) + amount * np.eye(self.rows.shape[-2])
        change = np.swapaxes(np.linalg.solve(gram, residual), -1, -2) @ self.rows
        return RowQuadratic(self.weight + change, self.rows, amount)


@dataclass(frozen=True)
class RowQuadratic(Objective):
    """The error tr((W - target) (X^T X + d I) (W - target)^T), X being ``rows`` and d ``amount``."""

    target: Float64Array
    rows: Float64Array
    amount: Float64Array

    @property
    def hessian(self) -> Float64Array:
        """The matrix [..., K, K], for solvers that need all of it."""
        inner = np.swapaxes(self.rows, -1, -2) @ self.rows
        return np.asarray(inner + self.amount * np.eye(self.rows.shape[-1]))

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The inputs in the solvers' order, the same in all groups: the largest mean square first."""
        squares = np.square(self.rows).sum(-2)
        return np.argsort(-squares.reshape(-1, squares.shape[-1]).mean(0), kind="stable")

    @keeps_subnormals
    def row_errors(self, weights: Float64Array) -> Float64Array:
        """Return the error of each output's weights: [..., N, 1]."""
        difference = weights - self.target
        outputs = difference @ np.swapaxes(self.rows, -1, -2)
        squares = (np.square(part).sum(-1, keepdims=True) for part in (outputs, difference))
        return np.asarray(next(squares) + self.amount * next(squares))

    def of_outputs(self, part: slice) -> RowQuadratic:
        """As in :class:`ops.rounding.quadratic.Quadratic`; the factors are computed once."""
        shared = {"order": self.order, "ordered_rows": self.ordered_rows, "factors": self.factors}
        form = replace(self, target=self.target[..., part, :])
        vars(form).update(shared)
        return form

    def elimination(self, outputs: int) -> RowElimination:
        """Return GPTQ's corrections of later inputs, for so many outputs."""
        return RowElimination(self, outputs)

    def descent(self, difference: Float64Array) -> RowDescent:
        """Return the slope of the error at the target minus ``difference`` [..., K, N], in solvers' order."""
        return RowDescent(self, difference)

    @cached_property
    def ordered_rows(self) -> Float64Array:
        """The rows with their inputs in ``order``."""
        return np.ascontiguousarray(self.rows[..., self.order])

    @cached_property
    def factors(self) -> tuple[Float64Array, list[Float64Array]]:
        """P_j x_j of each ordered input, [..., R, K], and U of each block of inputs."""
        rows, count = self.ordered_rows, self.rows.shape[-2]
        inverse = np.eye(count) / self.amount
        moved, blocks = np.empty_like(rows), list[Float64Array]()
        for start in reversed(range(0, rows.shape[-1], BLOCK)):
            columns = rows[..., start : start + BLOCK]
            solved = inverse @ columns
            inner = np.swapaxes(columns, -1, -2) @ solved
            unit, diagonal = unit_upper(inner + np.eye(columns.shape[-1]))
            reduced = np.linalg.solve(unit, np.swapaxes(solved, -1, -2))
            scaled = reduced / diagonal[..., None]
            moved[..., start : start + BLOCK] = np.swapaxes(scaled, -1, -2)
            inverse = inverse - np.swapaxes(reduced, -1, -2) @ scaled
            blocks.insert(0, unit)
        return moved, blocks


class RowElimination:
    """As :class:`ops.rounding.quadratic.Elimination`."""

    def __init__(self, form: RowQuadratic, outputs: int) -> None:
        """Start before the first input."""
        self._rows, (self._moved, self._blocks) = form.ordered_rows, form.factors
        self._errors = np.zeros((*self._rows.shape[:-1], outputs))

    def before(self, block: slice) -> Float64Array:
        """As in Elimination."""
        return np.asarray(np.swapaxes(self._moved[..., block], -1, -2) @ self._errors)

    def near(self, block: slice) -> Float64Array:
        """As in Elimination."""
        return self._blocks[block.start // BLOCK]

    def add(self, block: slice, change: Float64Array) -> None:
        """As in Elimination."""
        self._errors += self._rows[..., block] @ change


class RowDescent:
    """As :class:`ops.rounding.quadratic.Descent`."""

    def __init__(self, form: RowQuadratic, difference: Float64Array) -> None:
        """Start at the target minus the difference."""
        self._rows, self._amount = form.ordered_rows, form.amount
        self._difference, self._errors = difference, self._rows @ difference

    def slope(self, block: slice) -> Float64Array:
        """As in Descent."""
        product = np.swapaxes(self._rows[..., block], -1, -2) @ self._errors
        return np.asarray(product + self._amount * self._difference[..., block, :])

    def near(self, block: slice) -> Float64Array:
        """As in Descent."""
        columns = self._rows[..., block]
        return np.asarray(np.swapaxes(columns, -1, -2) @ columns + self._amount * np.eye(columns.shape[-1]))

    def add(self, block: slice, change: Float64Array) -> None:
        """As in Descent."""
        self._difference[..., block, :] -= change
        self._errors -= self._rows[..., block] @ change
