"""Grids of single tensors, as results of a quantization or given to one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops.formats import Format
from transforms.graph.grids import Grid

_WEIGHT = "weight"
_CLOSE = 1e-5
"""Relative difference within which two ends of a constant are equal: factors between layers are rounded."""


@dataclass(frozen=True)
class TensorGrid:
    """The integer grid of a tensor; scale and zero point are scalars, or have a number per index of ``axis``.

    ``zero_point`` counts from the lowest integer of the format: 128 is the zero of int8, as in the files of
    several tools, signed or not. ``format``: its name, empty if a file only gives ``bits``. ``low`` and
    ``high``: the lowest and highest number seen, None if unknown.
    """

    name: str
    role: str
    format: str
    bits: int
    axis: int | None
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    low: float | None = None
    high: float | None = None

    def fits(self, fmt: Format) -> bool:
        """Return whether this is a grid of a format."""
        return fmt.is_integer and (self.format == fmt.name if self.format else self.bits == fmt.bits)

    def is_along_other(self, axis: int | None) -> bool:
        """Return whether its scales are along another axis; an unknown axis may be any."""
        return self.axis is not None and self.axis != axis

    @classmethod
    def of(cls, name: str, role: str, grid: Grid, low: float | None, high: float | None) -> TensorGrid:
        """Return the grid of a tensor with the lowest and highest number seen."""
        fmt, offset = grid.format, grid.zero_point.astype(np.int64) - int(grid.format.lowest)
        return cls(name, role, fmt.name, int(fmt.bits), grid.axis, grid.scale, offset, low, high)

    def in_format(self, fmt: Format) -> Grid:
        """Return the grid in a format that it fits; with an unknown axis of scales, the first."""
        axis = 0 if self.axis is None and self.scale.ndim else self.axis
        return Grid(fmt.name, self.scale, self.zero_point + int(fmt.lowest), axis=axis)


class FixedGrids:
    """The grids required for tensors, by name."""

    def __init__(self, grids: Iterable[TensorGrid] = ()) -> None:
        """Store them; a tensor may have several: for formats, axes, and the roles of weight and value.

        Raises ValueError, naming the tensor, for two grids that nothing tells apart.
        """
        self._grids: dict[str, list[TensorGrid]] = {}
        seen: dict[tuple[object, ...], TensorGrid] = {}
        for grid in grids:
            other = seen.setdefault(
                (grid.name, grid.format, grid.bits, grid.axis, grid.role == _WEIGHT), grid
            )
            pairs = ((grid.scale, other.scale), (grid.zero_point, other.zero_point))
            if not all(np.array_equal(*pair) for pair in pairs):
                raise ValueError(f"tensor '{grid.name}': two grids of {grid.format or f'{grid.bits} bits'}")
            self._grids.setdefault(grid.name, []).append(grid)

    def __bool__(self) -> bool:
        return bool(self._grids)

    def __len__(self) -> int:
        return sum(map(len, self._grids.values()))

    def __iter__(self) -> Iterator[TensorGrid]:
        return (one for many in self._grids.values() for one in many)

    def of(self, names: Iterable[str], fmt: Format, role: str, axis: int | None) -> TensorGrid | None:
        """Return the grid for a format of the first tensor that has one, or None.

        Of several, one whose scales are along ``axis``, else one with a single scale; then one with the role.
        """
        for name in names:
            fitting = [grid for grid in self._grids.get(name, ()) if grid.fits(fmt)]
            if fitting:
                return min(
                    fitting,
                    key=lambda grid: (grid.is_along_other(axis), grid.axis != axis, grid.role != role),
                )
        return None


def check_grid(grid: TensorGrid, values: NDArray[np.float32] | None, axis: int | None) -> None:
    """Raise ValueError if a grid does not fit a tensor: other numbers, or another axis.

    ``values`` are those of a constant, None for a computed tensor.
    """
    size = None if axis is None or values is None else values.shape[axis]
    if grid.scale.shape != (() if size is None else (size,)):
        wanted = "one" if size is None else f"{size} along axis {axis}"
        raise ValueError(f"ranges of '{grid.name}': {grid.scale.size} scales, its quantization has {wanted}")
    if grid.is_along_other(axis):
        raise ValueError(
            f"ranges of '{grid.name}': scales along axis {grid.axis}, its quantization has them along {axis}"
        )
    if values is None or grid.low is None or grid.high is None:
        return
    extremes = float(values.min()), float(values.max())
    if not np.allclose(extremes, (grid.low, grid.high), rtol=_CLOSE, atol=0):
        raise ValueError(
            f"ranges of '{grid.name}' are of other numbers: from {grid.low:g} to {grid.high:g}, the model's "
            f"go from {extremes[0]:g} to {extremes[1]:g}"
        )
