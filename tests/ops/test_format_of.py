"""The format of a node by its attributes. Oracle: the operator itself, run by ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ops
from ops.formats import LINEAR, format_of
from tests.helpers.number_patterns import make_pattern
from tests.helpers.operator_sessions import BFLOAT16, BFP, MX, assert_same, block_session, run_bits

PRIME = {"bfp_method": "to_bfp_prime"}
NODES: list[tuple[str, dict[str, Any], str, float]] = [  # operator, attributes, name, bits per element
    (BFP, {}, "bfp16", 9),
    (BFP, {"bit_width": 16, "block_size": 8, "rounding_mode": 2}, "bfp16", 9),
    (BFP, {"rounding_mode": 1, "axis": 0}, "bfp16", 9),
    (BFP, {"sub_block_size": 4, "sub_block_shift_bits": 3}, "bfp16", 9),
    (BFP, {"convert_to_bfloat_before_bfp": 1}, "bfp16", 9),
    (BFP, {"bit_width": 13}, f"{BFP} bit_width=13", 6),
    (BFP, {"bfp_method": "to_bfp", "bit_width": 13}, f"{BFP} bit_width=13", 6),
    (BFP, {"bit_width": 14, "block_size": 4, "rounding_mode": 2}, f"{BFP} bit_width=14 block_size=4", 8),
    (BFP, {"block_size": 16}, f"{BFP} block_size=16", 8.5),
    (BFP, {"use_compiler_version_cpu_kernel": 1}, f"{BFP} use_compiler_version_cpu_kernel=1", 9),
    (BFP, PRIME, f"{BFP} bfp_method=to_bfp_prime", 9.5),
    (BFP, {**PRIME, "block_size": 16}, "mx9", 9),
    (BFP, {"bfp_method": "to_bfp_prime_shared", "block_size": 16, "bit_width": 11}, "mx4", 4),
    (BFP, {**PRIME, "block_size": 16, "bit_width": 13, "rounding_mode": 1}, "mx6", 6),
    (
        BFP,
        {**PRIME, "block_size": 32, "sub_block_size": 8, "sub_block_shift_bits": 3, "bit_width": 12},
        f"{BFP} bit_width=12 block_size=32 bfp_method=to_bfp_prime sub_block_size=8 sub_block_shift_bits=3",
        4.625,
    ),
    (MX, {}, "mxint8", 8.25),
    (MX, {"rounding_mode": 7}, "mxint8", 8.25),
    (MX, {"block_size": 1}, f"{MX} block_size=1", 16),
    (MX, {"element_dtype": "fp8_e5m2"}, "mxfp8_e5m2", 8.25),
    (MX, {"element_dtype": "fp6_e2m3", "rounding_mode": 2, "axis": -1}, "mxfp6_e2m3", 6.25),
    (MX, {"element_dtype": "fp4_e2m1", "block_size": 16}, f"{MX} element_dtype=fp4_e2m1 block_size=16", 4.5),
    (
        MX,
        {"element_dtype": "fp4_e2m1", "scale_rule": "rceil"},
        f"{MX} element_dtype=fp4_e2m1 scale_rule=rceil",
        4.25,
    ),
]


@pytest.mark.parametrize(("op", "attributes", "name", "bits"), NODES)
def test_the_format_rounds_as_the_operator(
    op: str, attributes: dict[str, Any], name: str, bits: float
) -> None:
    """Ties, special and tiny numbers in every float type; bits written out by the format's definition."""
    row = format_of(op, attributes)
    assert row is not None and (row.name, row.op, row.bits) == (name, op, bits)
    rng = np.random.default_rng(0)
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16):
        session = block_session(op, attributes, dtype=dtype)
        for pattern in ("ties", "normal", "special", "tiny", "huge", "wide"):
            with np.errstate(over="ignore"):
                x = make_pattern(pattern, (33, 70), rng).astype(dtype)
            assert_same(ops.quantize_dequantize(x, row, attributes.get("axis", 1)), run_bits(session, x))


@pytest.mark.parametrize(("op", "attributes", "name", "bits"), NODES)
def test_no_number_is_above_the_highest(op: str, attributes: dict[str, Any], name: str, bits: float) -> None:
    """Oracle: the operator on the largest float32, whose block has the largest exponent."""
    row = format_of(op, attributes)
    x = np.full((2, 64), np.finfo(np.float32).max)
    y = block_session(op, attributes).run(None, {"x": x})[0].astype(np.float64)
    assert row is not None and (y[np.isfinite(y)] <= row.highest).all()


@pytest.mark.parametrize("name", [name for name, row in ops.FORMATS.items() if row.op != LINEAR])
def test_rows_of_the_table_are_found_again(name: str) -> None:
    row = ops.FORMATS[name]
    found = format_of(row.op, {**row.attributes, "axis": 3})
    assert found is not None and (found.name, found.bits, found.highest) == (name, row.bits, row.highest)


@pytest.mark.parametrize("op", ["Relu", "Cast", "QuantizeLinear", LINEAR, ""])
def test_other_operators_have_no_format_by_their_attributes(op: str) -> None:
    assert format_of(op, {"bit_width": 13, "axis": 1}) is None


@pytest.mark.parametrize(
    ("op", "attributes", "words"),
    [
        (BFP, {"bit_width": 9}, "BFPQuantizeDequantize: bit_width is 9, legal are integers from 10 to 24"),
        (BFP, {"bit_width": 16.0}, "bit_width is 16.0, legal"),
        (BFP, {"bfp_method": "mx"}, "bfp_method is 'mx', legal are 'to_bfp', 'to_bfp_prime'"),
        (BFP, {**PRIME, "sub_block_size": 3}, "sub_block_size is 3, legal are divisors of block_size 8"),
        (
            BFP,
            {**PRIME, "use_compiler_version_cpu_kernel": 1},
            "use_compiler_version_cpu_kernel is 1, legal is 0",
        ),
        (BFP, {"bit_width": 13, "use_compiler_version_cpu_kernel": 1}, "legal is 0 unless"),
        (MX, {"element_dtype": ["int8"]}, r"element_dtype is \['int8'\], legal"),
        (MX, {"rounding_mode": 3}, "rounding_mode is 3, legal are integers from 0 to 2"),
    ],
)
def test_what_the_operator_refuses_is_refused(op: str, attributes: dict[str, Any], words: str) -> None:
    """Oracle: a session on such a node cannot be made."""
    with pytest.raises(ValueError, match=words):
        format_of(op, attributes)
    with pytest.raises(Exception, match=r"attribute '|wrong type|Error"):
        block_session(op, attributes)
