"""Sums over the rows of a layer, which determine the error of any weights for any number of rows.

With n rows x and float outputs y: the sums of x, y, x x^T, y x^T and y^2, in float64. The squared error
of a layer with weights V and bias b is then

    sum |y - V x - b|^2 = yy - 2 <V, yx> + <V xx, V> - 2 b (y - V x) + n b^2

for each output, and the same sums around the means give the best weights if the bias is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float64Array, FloatArray
from ops.rounding import LayerProblem
from ops.rounding.quadratic import Solve

_SMALL = 1 << 24
"""Multiplications that take less time on the CPU than sending the factors to a device."""


@dataclass
class GramStats:
    """Sums over rows for G groups of N outputs and K inputs; ``kind``: the type of products of rows."""

    count: float
    x: Float64Array  # [G, K]
    y: Float64Array  # [G, N]
    xx: Float64Array  # [G, K, K]
    yx: Float64Array  # [G, N, K]
    yy: Float64Array  # [G, N]
    kind: type[np.floating] = np.float64
    place: Any = field(default=None, init=False, repr=False, compare=False)
    """An array of the device that computes large products, or None for NumPy."""

    @classmethod
    def zeros(
        cls,
        groups: int,
        outputs: int,
        inputs: int,
        module: ModuleType = np,
        kind: type[np.floating] = np.float64,
    ) -> GramStats:
        """Return the sums over no rows, as arrays of a module: NumPy or one like it."""
        return cls(
            0.0,
            x=module.zeros((groups, inputs)),
            y=module.zeros((groups, outputs)),
            xx=module.zeros((groups, inputs, inputs)),
            yx=module.zeros((groups, outputs, inputs)),
            yy=module.zeros((groups, outputs)),
            kind=kind,
        )

    def of_outputs(self, part: slice) -> GramStats:
        """Return the sums for some of the outputs."""
        y, yx, yy = self.y[:, part], self.yx[:, part], self.yy[:, part]
        return GramStats(self.count, self.x, y, self.xx, yx, yy)._at(self.place)

    def on_host(self) -> GramStats:
        """Return the same sums as NumPy arrays."""
        x, y, xx, yx, yy = map(_on_host, (self.x, self.y, self.xx, self.yx, self.yy))
        place = self.place if isinstance(self.xx, np.ndarray) else self.xx[:0].copy()
        return GramStats(self.count, x, y, xx, yx, yy)._at(place)

    def _at(self, place: Any) -> GramStats:
        self.place = place
        return self

    def add(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> None:
        """Add rows x [G, R, K] with their outputs y [G, R, N].

        Rows with non-finite numbers are left out, since they would spoil the sums.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            moments, cross, yy = _products(self._there(x), self._there(y), self.kind)
        if not all(bool(np.isfinite(part[:, 0]).all()) for part in (moments, cross)):  # sums over all rows
            finite = finite_rows(x, y)
            if not finite.all():
                return self.add(x[:, finite], y[:, finite])
        self.count += x.shape[1]
        self.x += moments[:, 0, 1:]
        self.y += cross[:, 0]
        self.xx += moments[:, 1:, 1:]
        self.yx += cross[:, 1:].transpose(0, 2, 1)
        self.yy += yy
        return None

    def _there(self, array: NDArray[np.floating]) -> Any:
        """Return an array on the device of the sums."""
        return array if isinstance(self.xx, np.ndarray) else np.asarray(array, like=self.xx)

    def __add__(self, other: GramStats) -> GramStats:
        """Return the sums over the rows of both."""
        names = ("count", "x", "y", "xx", "yx", "yy")
        return GramStats(*(getattr(self, name) + getattr(other, name) for name in names))._at(self.place)

    def of_layer(self, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> GramStats:
        """Return the sums over the same x with y = weights [G, N, K] times x plus a bias [G, N]."""
        w, b = np.asarray(weights, np.float64), np.asarray(bias, np.float64)
        wx, wxx = _apply(w, self.x), self._product(w, self.xx)
        yx = wxx + b[:, :, None] * self.x[:, None, :]
        yy = (wxx * w).sum(2) + 2 * b * wx + self.count * b * b
        return GramStats(self.count, self.x, wx + self.count * b, self.xx, yx, yy)._at(self.place)

    def centred(self) -> GramStats:
        """Return the sums around the means of x and y, for a free bias."""
        n = max(self.count, np.finfo(np.float64).tiny)
        x, y = self.x / n, self.y / n
        xx = self.xx - n * x[:, :, None] * x[:, None, :]
        yx = self.yx - n * y[:, :, None] * x[:, None, :]
        none = np.zeros_like(x), np.zeros_like(y)
        return GramStats(self.count, *none, xx, yx, self.yy - n * y * y)._at(self.place)

    def bias(self, weights: NDArray[np.floating]) -> Float64Array:
        """Return the bias [G, N] with the least error for weights [G, N, K]."""
        n = max(self.count, np.finfo(np.float64).tiny)
        return (self.y - _apply(weights, self.x)) / n

    def error(self, weights: NDArray[np.floating], bias: NDArray[np.floating] | None = None) -> Float64Array:
        """Return the squared error [G, N] of weights [G, N, K] and a bias [G, N] (None: the best one)."""
        if bias is None:
            return self.centred().error(weights, np.zeros_like(self.y))
        w, b = np.asarray(weights, np.float64), np.asarray(bias, np.float64)
        terms = self._product(w, self.xx)
        terms -= 2 * self.yx
        terms *= w
        quadratic = terms.sum(2) + self.yy
        linear = -2 * b * (self.y - _apply(w, self.x)) + self.count * b * b
        return np.asarray(quadratic + linear)

    @property
    def importance(self) -> Float64Array:
        """The sum of squares of each input, [G, K]."""
        return np.maximum(np.diagonal(self.xx, axis1=-2, axis2=-1), 0)

    def problem(self, weights: FloatArray) -> LayerProblem:
        """Return the problem that solvers take, for float weights [G, N, K]."""
        return LayerProblem(weights, self.xx, self.yx)

    def settled(self) -> GramStats:
        """Return the same sums."""
        return self

    @property
    def solver(self) -> Solve | None:
        """The solver of linear equations on the device, or None."""
        return None if self.place is None else self._solve

    def _solve(self, matrix: Float64Array, right: FloatArray) -> FloatArray:
        """Solve matrix [G, K, K] times X = right [G, K, N], on the device if it is large."""
        if self._is_small(matrix, right):
            return np.asarray(np.linalg.solve(matrix, right), np.float64)
        return _on_host(np.linalg.solve(self._sent(matrix), self._sent(right)))

    def _product(self, a: Float64Array, b: Float64Array) -> Float64Array:
        return a @ b if self._is_small(a, b) else _on_host(self._sent(a) @ self._sent(b))

    def _is_small(self, a: Float64Array, b: FloatArray) -> bool:
        return self.place is None or a.shape[-2] * b.size < _SMALL

    def _sent(self, array: FloatArray) -> Any:
        return np.asarray(array, like=self.place)


def _products(x: Any, y: Any, kind: type[np.floating]) -> tuple[Any, Any, Any]:
    """Return the sums of (1, x) (1, x)^T, (1, x) y^T and y^2, in the given dtype.

    For many small groups the first two are one product, called once per group. A large matrix times itself
    takes half the time.
    """
    first, last = 1 + x.shape[2], 1 + x.shape[2] + y.shape[2]
    ends = (last,) if len(x) > 1 else (first, last)
    blocks = [np.empty_like(x, kind, shape=(*x.shape[:2], size)) for size in np.diff(ends, prepend=0)]
    rows, outputs = blocks[0][..., :first], blocks[-1][..., -y.shape[2] :]
    rows[..., 0], rows[..., 1:], outputs[...] = 1, x, y  # in the order of x in memory: rows or columns first
    left = rows.transpose(0, 2, 1)
    products = [left @ part for part in blocks]
    yy = (left[:, :1] @ (outputs * outputs))[:, 0]
    return products[0][..., :first], products[-1][..., -y.shape[2] :], yy


def _on_host(array: Any) -> Float64Array:
    return array if isinstance(array, np.ndarray) else np.asarray(array.get())


def _apply(weights: NDArray[np.floating], x: Float64Array) -> Float64Array:
    return np.asarray((np.asarray(weights, np.float64) @ x[:, :, None])[..., 0])


def finite_rows(x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which rows of x [G, R, K] and y [G, R, N] hold only finite numbers."""
    return np.asarray(np.isfinite(x).all((0, 2)) & np.isfinite(y).all((0, 2)))


LIMIT = 1 << 17  # numbers in a block: 1 MiB in float64, which fits a processor's cache


class RowBlock:
    """Buffers inputs [G, R, K] and outputs [G, R, N] of rows of several samples."""

    def __init__(self) -> None:
        """Start without rows."""
        self._rows, self._waiting = 0, list[tuple[AnyArray, AnyArray]]()

    def add(self, inputs: AnyArray, outputs: AnyArray) -> bool:
        """Buffer rows of a sample; return whether there are enough to take."""
        self._waiting.append((inputs, outputs))
        self._rows += inputs.shape[1]
        return self._rows >= _enough(inputs, outputs)

    def take(self) -> Iterator[tuple[AnyArray, AnyArray]]:
        """Yield the buffered inputs and outputs, concatenated, if there are any, and drop them."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if waiting:
            inputs, outputs = zip(*waiting, strict=True)
            yield np.concatenate(inputs, 1), np.concatenate(outputs, 1)


def _enough(inputs: AnyArray, outputs: AnyArray) -> int:
    """Return how many rows fill the limit; at least K, since sums of [K, K] numbers are read and written."""
    groups, _, summed = inputs.shape
    return max(summed, LIMIT // max(1, groups * (summed + outputs.shape[2])))
