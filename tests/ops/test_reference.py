"""The NumPy twins. Oracles: exact fractions written out here, and ml_dtypes for the grids of small floats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import ops
from ops import reference
from tests.helpers.operator_sessions import BFP, DOMAINS, MX, assert_same, block_session, run_twin
from tests.helpers.spread import spread

SMALL_FLOATS: dict[str, Any] = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}
FINITE = st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False).filter(
    lambda v: v == 0 or abs(v) > 2e-18
)
VECTORS = arrays.arrays(np.float32, st.sampled_from([(32,), (2, 32), (3, 64)]), elements=FINITE)
BLOCK_FORMATS = [name for name, row in ops.FORMATS.items() if row.block > 1]


def element_grid(name: str) -> np.ndarray:
    """Return every finite number of an element type, from all its codes."""
    bits = 8 if "8" in name else int(name[2])
    codes = np.arange(2**bits, dtype=np.uint8)
    values = codes.view(SMALL_FLOATS[name]).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_every_code_of_an_element_stays_what_it_is(name: str) -> None:
    grid = element_grid(name)
    assert np.array_equal(reference.round_to_element(grid, reference.ELEMENTS[name]), grid)
    assert grid.max() == reference.ELEMENTS[name].largest


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_every_midpoint_of_an_element_and_its_neighbours(name: str) -> None:
    """ml_dtypes is an oracle up to the largest number: above it, it overflows."""
    grid = element_grid(name)
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    points = np.concatenate([middle, np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf)])
    expected = points.astype(SMALL_FLOATS[name]).astype(np.float64)
    assert np.array_equal(
        reference.round_to_element(points.astype(np.float64), reference.ELEMENTS[name]), expected
    )


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_the_kernel_has_every_code_too(name: str) -> None:
    """With the largest number in the block the scale is 1, and the grid is the element's own."""
    element = reference.ELEMENTS[name]
    grid = element_grid(name)
    middle = (grid[1:] + grid[:-1]) / 2
    points = np.concatenate([grid, middle])
    blocks = np.zeros((points.size, 2), np.float32)
    blocks[:, 0] = element.largest
    blocks[:, 1] = points
    y = block_session(MX, {"element_dtype": name, "block_size": 2}).run(None, {"x": blocks})[0]
    assert np.array_equal(y[:, 1], points.astype(SMALL_FLOATS[name]).astype(np.float32))


def test_int8_has_all_its_codes() -> None:
    codes = np.arange(-128, 128) / 64.0
    element = reference.ELEMENTS["int8"]
    assert np.array_equal(reference.round_to_element(codes, element), codes)
    assert reference.round_to_element(np.array([5.0, -5.0]), element).tolist() == [127 / 64, -2]


@pytest.mark.parametrize(
    ("mode", "expected"), [(0, [-3, -2, -1, 1, 2, 3]), (1, [-2, -1, 0, 1, 2, 3]), (2, [-2, -2, 0, 0, 2, 2])]
)
def test_ties(mode: int, expected: list[int]) -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert reference.round_half(x, mode).tolist() == expected


def test_exponents_by_definition() -> None:
    x = np.array([0, 1, 2, 1.9999999, 0.5, 2.0**-126, 2.0**-127, 2.0**-149, 3e38])
    assert reference.exponents(x).tolist() == [-127, 0, 1, 0, -1, -126, -127, -127, 127]


def test_bfp_written_out() -> None:
    """m = 7 bits: E = 1, steps of 2^-5 = 0.03125, at most 127 of them."""
    x = np.array([[3.99, 1.0, 0.04, -0.046875, 0.0, -3.0, 0.015625, 0.01]], np.float32)
    expected = [[127 / 32, 1.0, 0.03125, -0.0625, 0.0, -3.0, 0.03125, 0.0]]
    assert reference.bfp(x, 1).tolist() == expected


def test_microexponent_written_out() -> None:
    """m = 2 bits: E = 2, steps of 2; one less in the second pair."""
    x = np.array([[4.9, 1.0, 1.6, -0.4]], np.float32)
    y = reference.microexponent(x, 1, bit_width=11, block_size=4, rounding_mode=2)
    assert y.tolist() == [[4.0, 0.0, 2.0, 0.0]]


def test_special_values_by_the_table() -> None:
    x = np.array([[np.inf, 1.0, np.nan, -0.0, 1e-40, -np.inf, 0.3, 0.0]], np.float32)
    plain = reference.bfp(x, 1)
    assert np.isnan(plain[0, 2]) and plain[0, 0] == np.inf and plain[0, 5] == -np.inf
    assert np.signbit(plain[0, 3]) and plain[0, 1] == 1
    assert np.isnan(reference.microexponent(x, 1, block_size=8)).all()


@pytest.mark.parametrize("name", spread(BLOCK_FORMATS, of=2))
@settings(max_examples=25, deadline=None)
@given(x=VECTORS)
def test_properties_of_block_formats(name: str, x: np.ndarray) -> None:
    """Equivariant under powers of two, the same on any axis, and block by block."""
    y = ops.quantize_dequantize(x, name)
    with np.errstate(over="ignore"):
        assert_same(ops.quantize_dequantize(x * np.float32(8), name), y * np.float32(8))
    assert_same(np.moveaxis(ops.quantize_dequantize(np.moveaxis(x, -1, 0), name, 0), 0, -1), y)
    block = ops.FORMATS[name].block
    assert_same(ops.quantize_dequantize(np.ascontiguousarray(x[..., :block]), name), y[..., :block])


@pytest.mark.parametrize("name", spread([name for name in BLOCK_FORMATS if name != "mxint8"], of=2))
@settings(max_examples=25, deadline=None)
@given(x=VECTORS)
def test_symmetric_formats_are_odd_and_idempotent(name: str, x: np.ndarray) -> None:
    """Not MXINT8, which has -2 but not 2: there -255 / 256 becomes -256 / 256, one binade up."""
    y = ops.quantize_dequantize(x, name)
    assert_same(ops.quantize_dequantize(-x, name), -y)
    assert_same(ops.quantize_dequantize(y, name), y)


@settings(max_examples=50, deadline=None)
@given(x=VECTORS, bit_width=st.integers(10, 24), mode=st.integers(0, 2))
def test_bfp_is_idempotent_and_its_error_bounded(x: np.ndarray, bit_width: int, mode: int) -> None:
    """Half a step; a whole one where the clamp at 2^m - 1 steps acts."""
    attributes = {"axis": -1, "bit_width": bit_width, "rounding_mode": mode}
    y = run_twin(BFP, attributes, x)
    blocks = x.reshape(-1, 8).astype(np.float64)
    step = 2.0 ** (reference.exponents(blocks).max(-1, keepdims=True) - (bit_width - 9) + 1)
    assert (np.abs(y.reshape(-1, 8) - blocks) <= step).all()
    assert_same(run_twin(BFP, attributes, y), y)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("exponent", [0, -126, 125])
@pytest.mark.parametrize(("block", "axis"), [(16, 1), (16, 0), (48, 1)])
def test_microexponent_ties_go_toward_infinity_in_mode_1(
    domain: str, exponent: int, block: int, axis: int
) -> None:
    """Written out, in steps of a block: -2.5 becomes -2. Rows, columns, odd sizes; extreme exponents."""
    steps = [7, -6.5, 2.5, -2.5, 3.5, -3.5, 4.5, -4.5, 5.5, -5.5, 0.5, -0.5, 2.25, -2.75, 7.5, -7.5]
    nearest = [7, -6, 3, -2, 4, -3, 5, -4, 6, -5, 1, -0.0, 2, -3, 7, -7]
    x, expected = (np.ldexp(np.tile(np.float32(row), (40, 3)), exponent) for row in (steps, nearest))
    x, expected = (part if axis else np.ascontiguousarray(part.T) for part in (x, expected))
    options = {"bit_width": 12, "block_size": block, "rounding_mode": 1}
    flat = {"bfp_method": "to_bfp_prime", "sub_block_shift_bits": 0, "axis": axis, **options}
    if exponent == -126:
        expected = np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), expected)
    assert_same(reference.microexponent(x, axis, shift_bits=0, **options), expected)
    assert_same(block_session(BFP, flat, domain=domain).run(None, {"x": x})[0], expected)


def test_microexponents_round_as_the_twin_in_every_mode() -> None:
    """Oracle: the twin, on ties of groups with shifts; every mode gives something else."""
    x = (np.random.default_rng(4).integers(-64, 65, (64, 64)) / 8).astype(np.float32)
    results = []
    for mode in range(3):
        attributes = {"bfp_method": "to_bfp_prime", "bit_width": 11, "rounding_mode": mode}
        results.append(run_twin(BFP, attributes, x))
        assert_same(block_session(BFP, attributes).run(None, {"x": x})[0], results[-1])
    assert not any(np.array_equal(results[i], results[i - 1]) for i in range(3))
