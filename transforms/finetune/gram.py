"""Sums over the rows of a layer that determine the error of any weights, for any number of rows.

With rows x, float outputs y and a weight w for each row: W = sum w, and the sums of w x, w y, w x x^T,
w y x^T and w y^2, all in float64. The squared error of a layer with weights V and bias b is then

    sum w |y - V x - b|^2 = yy - 2 <V, yx> + <V xx, V> - 2 b (y - V x) + W b^2

for each output, and the same sums around the means give the best weights if the bias is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float64Array
from ops.rounding import LayerProblem

_SMALL = 1 << 24
"""Multiplications that take the processor less time than sending the factors to a device."""


@dataclass
class GramStats:
    """Sums over rows for G groups of N outputs and K inputs."""

    count: float
    x: Float64Array  # [G, K]
    y: Float64Array  # [G, N]
    xx: Float64Array  # [G, K, K]
    yx: Float64Array  # [G, N, K]
    yy: Float64Array  # [G, N]
    place: Any = field(default=None, init=False, repr=False, compare=False)
    """An array of the device that large products are made on; None: NumPy makes them."""

    @classmethod
    def zeros(cls, groups: int, outputs: int, inputs: int, module: ModuleType = np) -> GramStats:
        """Return the sums over no rows, as arrays of a module: NumPy or one like it."""
        return cls(
            0.0,
            x=module.zeros((groups, inputs)),
            y=module.zeros((groups, outputs)),
            xx=module.zeros((groups, inputs, inputs)),
            yx=module.zeros((groups, outputs, inputs)),
            yy=module.zeros((groups, outputs)),
        )

    def on_host(self) -> GramStats:
        """Return the same sums as NumPy's arrays."""
        x, y, xx, yx, yy = map(_on_host, (self.x, self.y, self.xx, self.yx, self.yy))
        place = self.place if isinstance(self.xx, np.ndarray) else self.xx[:0].copy()
        return GramStats(self.count, x, y, xx, yx, yy)._at(place)

    def _at(self, place: Any) -> GramStats:
        self.place = place
        return self

    def add(
        self, x: NDArray[np.floating], y: NDArray[np.floating], weights: Float64Array | None = None
    ) -> None:
        """Add rows x [G, R, K] with their outputs y [G, R, N], counted ``weights`` [R] times each.

        Products are formed in float64. Rows with numbers that are not finite are left out, since they would
        spoil the sums.
        """
        counts = None if weights is None else self._there(weights)
        with np.errstate(invalid="ignore", over="ignore"):
            moments, cross, yy = _products(self._there(x), self._there(y), counts)
        if not all(bool(np.isfinite(part[:, 0]).all()) for part in (moments, cross)):  # sums of all numbers
            finite = finite_rows(x, y)
            if not finite.all():
                return self.add(x[:, finite], y[:, finite], None if weights is None else weights[finite])
        self.count += x.shape[1] if weights is None else float(weights.sum())
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
        """Return the sums around the means of x and y: those for a free bias."""
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

    def problem(self, weights: Float64Array) -> LayerProblem:
        """Return what solvers take, for float weights [G, N, K]."""
        return LayerProblem(weights, self.xx, self.yx)

    def settled(self) -> GramStats:
        """Return the same sums."""
        return self

    def solve(self, matrix: Float64Array, right: Float64Array) -> Float64Array:
        """Return what [G, K, K] times which is [G, K, N], found on the device if it is large."""
        if self._is_small(matrix, right):
            return np.asarray(np.linalg.solve(matrix, right), np.float64)
        return _on_host(np.linalg.solve(self._sent(matrix), self._sent(right)))

    def _product(self, a: Float64Array, b: Float64Array) -> Float64Array:
        return a @ b if self._is_small(a, b) else _on_host(self._sent(a) @ self._sent(b))

    def _is_small(self, a: Float64Array, b: Float64Array) -> bool:
        return self.place is None or a.shape[-2] * b.size < _SMALL

    def _sent(self, array: Float64Array) -> Any:
        return np.asarray(array, like=self.place)


def _products(x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return sum w (1, x) (1, x)^T, sum w (1, x) y^T and sum w y^2, in float64.

    For many small groups the first two are one product, called once per group. A large matrix times itself
    takes half the time.
    """
    first, last = 1 + x.shape[2], 1 + x.shape[2] + y.shape[2]
    ends = (last,) if len(x) > 1 else (first, last)
    parts = [np.empty_like(x, np.float64, shape=(*x.shape[:2], size)) for size in np.diff(ends, prepend=0)]
    rows, made = parts[0][..., :first], parts[-1][..., -y.shape[2] :]
    rows[..., 0], rows[..., 1:], made[...] = 1, x, y  # in the order of x in memory: rows or columns first
    left = (rows if weights is None else rows * weights[:, None]).transpose(0, 2, 1)
    products = [left @ part for part in parts]
    yy = (left[:, :1] @ (made * made))[:, 0]
    return products[0][..., :first], products[-1][..., -y.shape[2] :], yy


def _on_host(array: Any) -> Float64Array:
    return array if isinstance(array, np.ndarray) else np.asarray(array.get())


def _apply(weights: NDArray[np.floating], x: Float64Array) -> Float64Array:
    return np.asarray((np.asarray(weights, np.float64) @ x[:, :, None])[..., 0])


def finite_rows(x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which rows of x [G, R, K] and y [G, R, N] hold finite numbers alone."""
    return np.asarray(np.isfinite(x).all((0, 2)) & np.isfinite(y).all((0, 2)))


LIMIT = 1 << 17  # numbers in a block: 1 MiB in float64, which fits a processor's cache


Joined = tuple[AnyArray, AnyArray, Float64Array | None]
"""Inputs [G, R, K] and outputs [G, R, N] of rows, and the weights [R], if there are any."""


class RowBlock:
    """Buffers inputs [G, R, K] and outputs [G, R, N] of rows, and the weight of each row."""

    def __init__(self, add: Callable[[AnyArray, AnyArray, Float64Array | None], None]) -> None:
        """``add`` is called with rows of several samples: their inputs, outputs and weights [R], if any."""
        self._add, self._rows = add, 0
        self._waiting: list[Joined] = []

    def add(self, inputs: AnyArray, outputs: AnyArray, weights: Float64Array | None) -> None:
        """Buffer rows of a sample; either all samples have weights or none."""
        self._waiting.append((inputs, outputs, weights))
        self._rows += inputs.shape[1]
        if self._rows >= _enough(inputs, outputs):
            self.flush()

    def flush(self) -> None:
        """Pass on the buffered rows, if any."""
        if self._waiting:
            self._add(*self._take())

    def _take(self) -> Joined:
        inputs, outputs, weights = zip(*self._waiting, strict=True)
        counts = None if weights[0] is None else np.concatenate(weights)
        self._waiting, self._rows = [], 0
        return np.concatenate(inputs, 1), np.concatenate(outputs, 1), counts


def _enough(inputs: AnyArray, outputs: AnyArray) -> int:
    """Return how many rows fill the limit; at least K, since sums of [K, K] numbers are read and written."""
    groups, _, summed = inputs.shape
    return max(summed, LIMIT // max(1, groups * (summed + outputs.shape[2])))
