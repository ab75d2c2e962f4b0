"""Grids of weights. Oracles: the formats' own quantizers, and all numbers of a grid listed."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import ops
from ops.formats import LINEAR
from ops.grids import Grid, weight_grid
from ops.grids.fixed import round_floating
from ops.integers import dequantize, quantize, weight_range, weight_scale
from ops.reference import ELEMENTS
from tests.helpers.layer_problems import make_layer, nearest

BLOCKS = [name for name, row in ops.FORMATS.items() if row.op != LINEAR]
FLOATS = ["float16", "bfloat16"]
INTEGERS = ["int4", "int8", "int16"]
SHAPES = [(4, 1, 64), (3, 9, 20), (2, 4, 1), (5, 3, 33), (3, 2, 4, 17)]


def _weight(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    """Numbers of many sizes, some zero, some blocks all zero."""
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal(shape) * 2.0 ** generator.integers(-6, 3, shape)
    weight[generator.random(shape) < 0.1] = 0
    weight[..., -1, : shape[-1] // 2] = 0
    return weight.astype(np.float32)


def _flat(weight: NDArray[np.float32]) -> NDArray[np.float64]:
    return weight.reshape(*weight.shape[:-2], -1).astype(np.float64)


def _requantize(values: NDArray[np.float64], shape: tuple[int, ...], name: str) -> NDArray[np.float64]:
    return _flat(ops.quantize_dequantize(values.astype(np.float32).reshape(shape), name, -1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BLOCKS + FLOATS)
def test_rounding_is_that_of_the_format(name: str, shape: tuple[int, ...]) -> None:
    weight = _weight(shape)
    rounded = weight_grid(weight, name).round(_flat(weight))
    expected = _requantize(_flat(weight), shape, name)
    if name == "mxint8":  # without -2, of which the format would make the next exponent
        exponents = np.frexp(np.abs(expected))[1]
        at_end = (expected < 0) & (np.abs(expected) == 2.0 ** (exponents - 1)) & (rounded != expected)
        assert np.all(np.abs(rounded[at_end]) >= np.abs(expected[at_end]) * 127 / 128)
        expected = np.where(at_end, rounded, expected)
    np.testing.assert_array_equal(rounded, expected)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("name", BLOCKS + FLOATS)
def test_what_is_on_the_grid_survives_the_format(name: str, weighed: bool) -> None:
    generator = np.random.default_rng(3)
    for i, shape in enumerate(SHAPES):
        weight = _weight(shape, i)
        importance = generator.random(shape[-2] * shape[-1]) ** 8 if weighed else None
        grid = weight_grid(weight, name, importance=importance)
        for size in (0, 0.5, 0.9, 1.1, 3):  # weights that move to where exponents change
            moved = size * _flat(weight) * generator.uniform(0.3, 1.2, _flat(weight).shape)
            values = grid.round(moved)
            np.testing.assert_array_equal(_requantize(values, shape, name), values)


def test_blocks_of_e4m3_keep_their_largest_number_in_its_binade() -> None:
    weight = np.array([[[1.0, 0.3, -0.2, 0.1]]], np.float32)
    values = weight_grid(weight, "mxfp8_e4m3").round(np.array([[0.94, 0.3, -0.2, 0.1]]))
    assert values[0, 0] == 1  # 0.9375 would be 1.875 times the next scale, whose largest number is 1.75
    negative = weight_grid(-weight, "mxfp8_e4m3").round(np.array([[0.94, 0.3, -0.2, 0.1]]))
    assert negative[0, 0] == -1
    assert weight_grid(weight, "mxfp8_e5m2").round(np.array([[0.2, 0.3, -0.2, 0.1]]))[0, 0] < 1


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_zeros_stay_zero(name: str) -> None:
    weight = np.zeros((2, 1, 40), np.float32)
    grid = weight_grid(weight, name)
    assert not grid.round(np.ones((2, 40))).any()
    below, above = grid.neighbours(np.ones((2, 40)))
    assert not below.any() and not above.any()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_come_back_from_their_quantizer(name: str, per_channel: bool) -> None:
    weight = _weight((6, 3, 5))
    grid = weight_grid(weight, name, per_channel=per_channel)
    scale = weight_scale(weight, name, 0 if per_channel else None)
    np.testing.assert_array_equal(grid.scale.reshape(-1), np.broadcast_to(scale, 6))
    values = grid.round(1.3 * _flat(weight)).astype(np.float32)
    integers = quantize(values, grid.scale.reshape(-1), np.zeros(6, np.int64), name, 0)
    np.testing.assert_array_equal(
        dequantize(integers, grid.scale.reshape(-1), np.zeros(6, np.int64), 0), values
    )
    limits = np.iinfo("int8") if name == "int8" else None
    assert limits is None or integers.astype(int).max() == limits.max


def test_importance_chooses_the_scale_of_integers() -> None:
    weight = _weight((4, 1, 30))
    importance = np.linspace(0, 1, 30)
    grid = weight_grid(weight, "int4", importance=importance)
    expected = weight_scale(
        weight, "int4", 0, method="MSE", importance=np.broadcast_to(importance, weight.shape)
    )
    np.testing.assert_array_equal(grid.scale.reshape(-1), expected)
    assert np.any(grid.scale != weight_grid(weight, "int4").scale)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("exponent", (-200, -140, 130, 200))
def test_only_ratios_of_importance_count(exponent: int) -> None:
    """Squares of inputs of 1e-30 are 0 in float32, of 1e30 infinite. Oracle: the same without a factor."""
    weight, importance = _weight((4, 1, 30)), np.random.default_rng(3).random(30)
    found, expected = (
        (
            weight_scale(weight, "int4", 0, method="MSE", importance=importance * factor),
            *weight_range(weight, "uint4", 0, importance=importance * factor),
        )
        for factor in (2.0**exponent, 1.0)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_zero_points_move_the_limits() -> None:
    weight = _weight((2, 1, 8))
    grid = weight_grid(weight, "uint8", scale=[0.5, 0.25], zero_point=[10, 200])
    np.testing.assert_array_equal(grid.round(np.full((2, 8), 1e9))[:, 0], [245 * 0.5, 55 * 0.25])
    np.testing.assert_array_equal(grid.round(np.full((2, 8), -1e9))[:, 0], [-10 * 0.5, -200 * 0.25])


@pytest.mark.parametrize("name", BLOCKS)
def test_importance_makes_the_weighed_error_of_no_block_larger(name: str) -> None:
    weight = _weight((6, 2, 70), 5)
    importance = np.random.default_rng(5).random(140) ** 6
    plain, weighed = weight_grid(weight, name), weight_grid(weight, name, importance=importance)

    def errors(grid: Grid) -> NDArray[np.float64]:
        squares = importance * (grid.round(_flat(weight)) - _flat(weight)) ** 2
        padded = np.pad(squares.reshape(6, 2, 70), [(0, 0), (0, 0), (0, -70 % ops.FORMATS[name].block)])
        return padded.reshape(6, 2, -1, ops.FORMATS[name].block).sum(-1)

    assert np.all(errors(weighed) <= errors(plain) * (1 + 1e-12))
    assert errors(weighed).sum() < errors(plain).sum()


@pytest.mark.parametrize("name", INTEGERS[:2] + FLOATS + BLOCKS)
def test_neighbours_hold_every_weight_and_leave_nothing_between(name: str) -> None:
    weight = _weight((3, 2, 40), 7)
    grid = weight_grid(weight, name)
    values = 0.9 * _flat(weight)
    below, above = grid.neighbours(values)
    inside = (below <= values) & (values <= above)
    clipped = np.clip(values / grid.scale, grid.lowest, grid.highest) * grid.scale != values
    assert np.all(inside | clipped)
    np.testing.assert_array_equal(grid.round(below), below)
    np.testing.assert_array_equal(grid.round(above), above)
    middle = grid.round((below + above) / 2)  # the only numbers next to the middle
    assert np.all((middle == below) | (middle == above))
    nearest = np.where(values - below <= above - values, below, above)
    tie = values - below == above - values
    np.testing.assert_array_equal(np.where(tie, nearest, grid.round(values)), nearest)


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, "mx6", "mxfp4", "mxfp8_e4m3"])
def test_columns_agree_with_the_whole(name: str) -> None:
    weight = _weight((2, 3, 2, 20), 9)
    grid = weight_grid(weight, name)
    values = 1.1 * _flat(weight)
    columns = [nearest(grid, values[..., j], j) for j in range(40)]
    np.testing.assert_array_equal(np.stack(columns, -1), grid.round(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [name for name in ELEMENTS if name != "int8"])
def test_floating_elements_round_to_their_listed_numbers(name: str, dtype: type[np.floating]) -> None:
    element = ELEMENTS[name]
    fractions = np.arange(2**element.mantissa_bits) / 2**element.mantissa_bits
    normal = [2.0**e * (1 + fractions) for e in range(1 - element.bias, element.largest_exponent + 1)]
    listed = np.concatenate([2.0 ** (1 - element.bias) * fractions, *normal])
    middles = (listed[1:] + listed[:-1]) / 2
    even = np.where(np.arange(len(middles)) % 2 == 0, listed[:-1], listed[1:])
    for values, expected in (
        (listed, listed),
        (middles, even),
        (np.nextafter(middles, np.inf, dtype=dtype), listed[1:]),
        (np.nextafter(middles, -np.inf, dtype=dtype), listed[:-1]),
    ):
        np.testing.assert_array_equal(round_floating(values.astype(dtype), element), expected)
        np.testing.assert_array_equal(round_floating(-values.astype(dtype), element), -expected)


def test_groups_are_as_if_each_were_alone() -> None:
    weight, problem = make_layer((3, 2, 9, 1))
    diagonal = np.diagonal(problem.gram, axis1=1, axis2=2)
    for name in ("int4", "mx6", "mxfp4"):
        together = weight_grid(weight, name, importance=diagonal).round(problem.weight)
        for g in range(3):
            alone = weight_grid(weight[g], name, importance=diagonal[g]).round(problem.weight[g])
            np.testing.assert_array_equal(together[g], alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "int5"}, "format 'int5' is unknown"),
        ({"scale": [1.0, 2.0]}, "scale has 2 elements, legal are 1 and 3"),
        ({"scale": 0.0}, "scale 0 is not positive"),
        ({"zero_point": [1, 2]}, "zero_point has 2 elements"),
        ({"importance": np.ones(7)}, r"importance \[7\] does not fit a weight \[3, 2, 4\]"),
        ({"importance": -np.ones(8)}, "importance -1 is negative or not finite"),
        ({"weight": np.ones((3, 8), np.float32)}, r"the weight has shape \[3, 8\]"),
        ({"weight": np.full((3, 2, 4), np.nan, np.float32)}, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    arguments = {"weight": np.ones((3, 2, 4), np.float32), "format": "int8"} | change
    with pytest.raises(ValueError, match=message):
        weight_grid(**arguments)  # type: ignore[arg-type]
