"""Where the kernels change between ordinary and rare blocks. Oracle: the NumPy twin, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ops
from tests.helpers.operator_sessions import BFP, MX, assert_same, block_session, run_bits, run_twin

PRIME = {"bfp_method": "to_bfp_prime", "block_size": 16}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((BFP, {"block_size": size, "rounding_mode": mode}) for size in (2, 4, 8, 32) for mode in range(3)),
    *((BFP, {"bit_width": width, "rounding_mode": mode}) for width in (10, 24) for mode in range(3)),
    *(
        (BFP, {**PRIME, "sub_block_size": sub, "rounding_mode": mode})
        for sub in (1, 2, 8, 16)
        for mode in (0, 2)
    ),
    (BFP, {**PRIME, "sub_block_shift_bits": 3}),
    (BFP, {**PRIME, "sub_block_shift_bits": 8}),
    *((MX, {"element_dtype": "int8", "rounding_mode": mode}) for mode in range(3)),
    *((MX, {"element_dtype": kind}) for kind in ("fp8_e5m2", "fp6_e2m3", "fp4_e2m1")),
    *((MX, {"element_dtype": "fp4_e2m1", "scale_rule": rule}) for rule in ("ceil", "even", "rceil")),
]
IDS = ["-".join(map(str, (op, *attributes.values()))) for op, attributes in CASES]


def blocks_of_every_exponent(rng: np.random.Generator) -> np.ndarray:
    """64 numbers below 2^(E+1) for each biased exponent E: ties of 8 to 25 bits, their neighbours, zeros."""
    exponents = np.repeat(np.arange(255, dtype=np.uint32), 64).reshape(255, 64)
    below = rng.integers(0, 12, exponents.shape).astype(np.uint32) * (rng.random(exponents.shape) < 0.7)
    fields = np.where(exponents > below, exponents - below, 0).astype(np.uint32)
    kept = rng.integers(0, 24, exponents.shape).astype(np.uint32)  # zeros below a bit: ties of some width
    fractions = rng.integers(0, 1 << 23, exponents.shape).astype(np.uint32) >> kept << kept
    bits = (fields << 23 | fractions) + rng.integers(-1, 2, exponents.shape).clip(0).astype(np.uint32)
    signs = rng.integers(0, 2, exponents.shape).astype(np.uint32) << 31
    zeros = rng.random(exponents.shape) < 0.05
    return (np.where(zeros, 0, bits) | signs).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(("op", "attributes"), CASES, ids=IDS)
def test_every_exponent_alone_and_together(op: str, attributes: dict[str, Any]) -> None:
    """Rows and columns; each exponent in a tile of its own, and all in common tiles."""
    x = blocks_of_every_exponent(np.random.default_rng(5))
    for axis, blocks in ((1, x), (0, np.ascontiguousarray(x.T))):
        session = block_session(op, {**attributes, "axis": axis})
        expected = run_twin(op, {**attributes, "axis": axis}, blocks)
        assert_same(run_bits(session, blocks), expected)
        for i in range(255):
            one = np.ascontiguousarray(np.take(blocks, [i], 1 - axis))
            assert_same(run_bits(session, one), np.ascontiguousarray(np.take(expected, [i], 1 - axis)))


@pytest.mark.parametrize(("op", "attributes"), CASES, ids=IDS)
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 1e-40, 3.4e38])
def test_one_rare_number_changes_no_other_block(op: str, attributes: dict[str, Any], special: float) -> None:
    x = np.random.default_rng(6).standard_normal((3, 1152), np.float32)
    x[1, 500] = special
    for axis in (0, 1):
        session = block_session(op, {**attributes, "axis": axis})
        assert_same(run_bits(session, x), run_twin(op, {**attributes, "axis": axis}, x))


@pytest.mark.parametrize("format", ["bfp16", "mx9", "mx4", "mxint8", "mxfp4"])
@pytest.mark.parametrize("axis", [0, 1])
def test_zeros_keep_their_signs_among_others(format: str, axis: int) -> None:
    x = np.random.default_rng(7).standard_normal((64, 64), np.float32)
    x[:32] *= 0.0
    y = ops.quantize_dequantize(x, format, axis)
    assert np.array_equal(y[:32].view(np.uint32), x[:32].view(np.uint32))
    assert np.array_equal(np.signbit(y), np.signbit(x))


@pytest.mark.parametrize("format", ["bfp16", "mx9", "mxint8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_in_place_is_the_same_for_rare_tiles(format: str, axis: int) -> None:
    x = np.random.default_rng(8).standard_normal((96, 1056), np.float32)
    x[5, 7] = np.nan
    y = ops.quantize_dequantize(x, format, axis)
    ops.quantize_dequantize(x, format, axis, out=x)
    assert_same(x, y)
