"""Grids of weights, found in their numbers. Oracle: how each weight was made, and its numbers themselves."""

from __future__ import annotations

import numpy as np
import pytest

from ops.grids.codes import GridCodes
from ops.grids.half_units import rounded
from ops.grids.recognise import FoundGrid, recognise
from tests.helpers.known_grids import GRIDS, Array, brain, half, names, plain, symmetric


def _read(found: FoundGrid, weight: Array) -> Array:
    """Return the numbers that a grid says, computed in float32."""
    made = plain(found.numbers(weight)) * found.expanded(found.step, weight.shape)
    if found.minimum is not None:
        made = made + found.expanded(found.minimum, weight.shape)
    return rounded(made, found.kind.rounding)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", names())
def test_known_grids_are_found_and_have_all_numbers(name: str, turned: bool) -> None:
    make, block = GRIDS[name]
    for seed in range(1 if turned or "float16" in name else 2):
        weight = np.ascontiguousarray(make(seed).T) if turned else make(seed)
        found = recognise(weight)
        assert found is not None and found.share == 1
        along = 0 if turned else 1
        assert (found.axis, found.block) == ((along, block) if block else (1 - along, 0))
        np.testing.assert_array_equal(_read(found, weight), weight)


@pytest.mark.parametrize(
    ("name", "bits"), [("Q4_0", 4), ("GPTQ 64", 4), ("Q8_0", 8), ("2 bits", 2), ("ternary", 2)]
)
def test_codes_have_the_bits_of_the_source(name: str, bits: int) -> None:
    """A step that is negative at its source leaves the middle as zero point; those of GPTQ have their own."""
    weight = GRIDS[name][0](0)
    found = recognise(weight)
    assert found is not None
    codes = GridCodes.of(found)
    numbers = codes.of_values(weight).astype(np.int16)
    assert codes.bits == bits and numbers.min() >= 0 and numbers.max() < 2**bits
    assert codes.is_signed == (name != "GPTQ 64")
    made = plain(numbers - found.expanded(codes.zero, weight.shape)) * found.expanded(
        codes.step, weight.shape
    )
    np.testing.assert_array_equal(made, weight)


@pytest.mark.parametrize("kind", [plain, half, brain])
@pytest.mark.parametrize("draw", ["normal", "uniform", "student"])
def test_random_weights_are_on_no_grid(kind: object, draw: str) -> None:
    assert callable(kind)
    for seed in range(5):
        random = np.random.default_rng(seed)
        shape = 64, 96
        numbers = {
            "normal": random.standard_normal(shape),
            "uniform": random.uniform(-1, 1, shape),
            "student": random.standard_t(3, shape),
        }
        assert recognise(kind(numbers[draw] * 0.1)) is None


def test_a_share_of_the_blocks_is_said() -> None:
    weight = GRIDS["Q4_1"][0](0)
    weight[7, 64:96] = np.random.default_rng(1).standard_normal(32)
    found = recognise(weight)
    assert found is not None and found.block == 32
    assert found.share == 1 - 1 / (weight.size // 32)


def test_rows_that_no_probe_sees_widen_the_kind() -> None:
    """Most rows are ternary, some that lie between have 4 bits."""
    weight = np.repeat(symmetric(2, 512, plain)(0), 8, 0)
    weight[101:104] = symmetric(4, 512, plain)(1)[:3]
    found = recognise(weight)
    assert found is not None and found.share == 1 and found.kind.bits == 4
    np.testing.assert_array_equal(_read(found, weight), weight)


def test_filters_have_a_scale_per_channel() -> None:
    for axis in (0, 1):
        random = np.random.default_rng(axis)
        scale = random.uniform(0.01, 0.02, (6, 1, 1, 1)).astype(np.float32)
        weight = plain(random.integers(-127, 128, (6, 8, 3, 3))) * scale
        weight = np.ascontiguousarray(np.swapaxes(weight, 0, 1)) if axis else weight
        found = recognise(weight)
        assert found is not None and (found.axis, found.block) == (axis, 0)
        np.testing.assert_array_equal(_read(found, weight), weight)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_on_no_grid(bad: float) -> None:
    weight = GRIDS["Q8_0"][0](0)
    weight[:, 5] = bad
    assert recognise(weight) is None
    assert recognise(weight[0]) is None and recognise(weight[:0]) is None


def test_a_short_last_block_is_on_the_grid() -> None:
    weight = GRIDS["Q4_1"][0](0)[:, :496]
    found = recognise(weight)
    assert found is not None and found.block == 32 and found.step.shape == (24, 16)
    np.testing.assert_array_equal(_read(found, weight), weight)
