"""Grids of single tensors, as they come out of a quantization, or are given to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops.array_types import QParams
from ops.formats import Format

_CLOSE = 1e-5
"""Relative difference up to which two ends of a constant are one: factors between layers may be rounded."""


@dataclass(frozen=True)
class TensorGrid:
    """The integers of a tensor: scale and zero point are scalars, or have a number per index of ``axis``.

    ``zero_point`` counts from the lowest integer of the format: 128 is the zero of int8, which files of
    several tools share, whether their integers have a sign or not. ``format``: its name, empty where a file
    gives ``bits`` alone. ``low`` and ``high``: the lowest and highest number seen, None if not known.
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

    def parameters(self, fmt: Format) -> QParams:
        """Return scale and zero point in a format that the grid fits."""
        return self.scale, (self.zero_point + int(fmt.lowest)).astype(fmt.dtype)

    def ends(self, fmt: Format) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lowest and the highest number that the integers of a format stand for."""
        steps = np.array([0, 2**fmt.bits - 1])[:, None] - np.atleast_1d(self.zero_point)
        low, high = np.atleast_1d(self.scale).astype(np.float64) * steps
        return low, high


class FixedGrids:
    """The grids that tensors are to have, by name."""

    def __init__(self, grids: Iterable[TensorGrid] = ()) -> None:
        """Keep them; a tensor may have several, of several formats."""
        self._grids: dict[str, list[TensorGrid]] = {}
        for one in grids:
            self._grids.setdefault(one.name, []).append(one)

    def __bool__(self) -> bool:
        return bool(self._grids)

    def __len__(self) -> int:
        return sum(map(len, self._grids.values()))

    def of(self, names: Iterable[str], fmt: Format) -> TensorGrid | None:
        """Return the first grid of a format that one of some tensors has, or None."""
        found = (one for name in names for one in self._grids.get(name, ()) if one.fits(fmt))
        return next(found, None)


def check_values(grid: TensorGrid, values: NDArray[np.float32], axis: int | None) -> None:
    """Raise ValueError if a grid is not one of this constant: of other numbers, or of another axis."""
    if grid.scale.shape != (() if axis is None else (values.shape[axis],)):
        wanted = "one" if axis is None else f"{values.shape[axis]} along axis {axis}"
        raise ValueError(f"ranges of '{grid.name}': {grid.scale.size} scales, its quantization has {wanted}")
    if grid.low is None or grid.high is None:
        return
    found = float(values.min()), float(values.max())
    if not np.allclose(found, (grid.low, grid.high), rtol=_CLOSE, atol=0):
        raise ValueError(
            f"ranges of '{grid.name}' are of other numbers: from {grid.low:g} to {grid.high:g}, the model's "
            f"go from {found[0]:g} to {found[1]:g}"
        )
