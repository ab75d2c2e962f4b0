"""Grids that are given to tensors: which of several belongs where."""

from __future__ import annotations

import numpy as np
import pytest

from ops.formats import get_format
from transforms.graph.grids import Grid
from transforms.plan.quant_spec import CONSTANT, WEIGHT
from transforms.plan.tensor_grids import FixedGrids, TensorGrid


def grid(role: str, axis: int | None) -> TensorGrid:
    size = () if axis is None else (4,)
    return TensorGrid("w", role, "int8", 8, axis, np.full(size, 0.5, np.float32), np.full(size, 128))


WHOLE, ROWS, VALUE = grid(WEIGHT, None), grid(WEIGHT, 0), grid(CONSTANT, None)


@pytest.mark.parametrize(
    ("grids", "role", "axis", "wanted"),
    [
        ((WHOLE, ROWS), WEIGHT, 0, ROWS),
        ((ROWS, WHOLE), WEIGHT, None, WHOLE),
        ((VALUE, WHOLE), WEIGHT, 0, WHOLE),
        ((WHOLE, VALUE), CONSTANT, None, VALUE),
        ((ROWS, VALUE), CONSTANT, None, VALUE),
    ],
)
def test_of_several_grids(grids: tuple, role: str, axis: int | None, wanted: TensorGrid) -> None:
    """A weight that two products read is a grid per tensor for one, and per channel for the other."""
    assert FixedGrids(grids).of(["w"], get_format("int8"), role, axis) is wanted


@pytest.mark.parametrize(("dtype", "zero"), [("int8", -3), ("uint8", 125), ("int16", 7)])
@pytest.mark.parametrize("axis", [None, 1])
def test_a_grid_in_and_out(dtype: str, zero: int, axis: int | None) -> None:
    """Oracle: the lowest and highest number that Grid itself makes of its integers."""
    scale = np.float32(0.5) if axis is None else np.array([0.5, 0.25], np.float32)
    one, fmt = Grid(dtype, scale, zero, axis=axis), get_format(dtype)
    tensor = TensorGrid.of("w", WEIGHT, one, None, None)
    assert tensor.in_format(fmt) == one and tensor.fits(fmt)
    assert (tensor.zero_point == zero - int(fmt.lowest)).all()
    ends = np.array([fmt.lowest, fmt.highest], fmt.dtype)
    wanted = [one.dequantize(np.full((1, scale.size), end)).reshape(-1) for end in ends]
    assert np.array_equal(one.ends(), wanted)
