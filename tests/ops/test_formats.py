"""The table of formats, and rounding arrays. Oracles: operators, twins, recorded fidelities."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import ops
from ops.formats import BFP, LINEAR, MX
from ops.round_trip import choose_scale
from tests.helpers.number_patterns import PATTERNS, make_pattern
from tests.helpers.operator_sessions import (
    BFLOAT16,
    assert_same,
    block_session,
    make_session,
    onnx_type,
    run_bits,
    run_twin,
)

SCALARS = [
    "int2",
    "uint2",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "float16",
    "bfloat16",
]
BLOCKS = [
    "bfp16",
    "mx4",
    "mx6",
    "mx9",
    "mxint8",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp6_e3m2",
    "mxfp6_e2m3",
    "mxfp4",
]
NAMES = SCALARS + BLOCKS
BITS = {
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "bfp16": 9,
    "mx4": 4,
    "mx6": 6,
    "mx9": 9,
    "mxint8": 8.25,
    "mxfp8_e5m2": 8.25,
    "mxfp6_e3m2": 6.25,
    "mxfp4": 4.25,
}
FIDELITY = {  # dB on N(0, 1)
    "bfloat16": 55.6,
    "mx9": 46.5,
    "bfp16": 44.1,
    "mxint8": 41.7,
    "mxfp6_e2m3": 30.9,
    "mxfp8_e4m3": 30.7,
    "mx6": 28.3,
    "mxfp8_e5m2": 25.4,
    "mxfp6_e3m2": 25.4,
    "mxfp4": 18.8,
    "mx4": 15.7,
}
BLOCK_FORMATS = [name for name, row in ops.FORMATS.items() if row.op != LINEAR]


def test_table() -> None:
    assert sorted(ops.FORMATS) == sorted(NAMES)
    assert {name: ops.FORMATS[name].bits for name in BITS} == BITS
    assert {row.op for row in ops.FORMATS.values()} == {LINEAR, BFP, MX}
    with pytest.raises(TypeError):
        ops.FORMATS["new"] = ops.FORMATS["mx4"]  # type: ignore[index]


@pytest.mark.parametrize("name", SCALARS)
def test_limits_are_those_of_the_type(name: str) -> None:
    row = ops.FORMATS[name]
    limits = (ml_dtypes.iinfo if row.is_integer else ml_dtypes.finfo)(row.dtype)
    assert row.dtype.name == name
    assert (row.lowest, row.highest) == (limits.min, limits.max)
    assert row.is_signed == (limits.min < 0)


def test_block_formats_have_no_type() -> None:
    assert ops.FORMATS["mx6"].lowest == -ops.FORMATS["mx6"].highest and ops.FORMATS["mx6"].is_signed
    with pytest.raises(ValueError, match="format 'mx6' has no element type"):
        ops.FORMATS["mx6"].dtype  # noqa: B018


@pytest.mark.parametrize("name", SCALARS)
def test_operators_take_the_formats_that_say_so(name: str) -> None:
    row = ops.FORMATS[name]
    constants = {"scale": np.ones((), np.float32), "zero": np.zeros((), row.dtype)}
    node = helper.make_node(row.op, ["x", "scale", "zero"], ["y"], domain=ops.DOMAIN)
    if not row.is_integer or row.bits >= 8:
        session = make_session([node], TensorProto.FLOAT, onnx_type(row.dtype), constants=constants)
        assert session.get_outputs()[0].type == f"tensor({name})"
    else:
        with pytest.raises(Exception, match="Type Error"):
            make_session([node], TensorProto.FLOAT, onnx_type(row.dtype), constants=constants)


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_4_bit_integers_saturate(name: str) -> None:
    """An infinity becomes the end of the range that the finite numbers span."""
    x = np.array([-3.5, 0, 0.6, 3.5, np.inf, -np.inf, np.nan], np.float32)
    scale, zero_point = choose_scale(x, ops.FORMATS[name])
    assert (scale, zero_point) == ((0.5, 0) if name == "int4" else (np.float32(7 / 15), 7))
    ends = [(limit - zero_point) * scale for limit in (ops.FORMATS[name].highest, ops.FORMATS[name].lowest)]
    y = ops.quantize_dequantize(x, name)
    assert y.tolist() == pytest.approx([*y[:4].tolist(), *ends, 0])
    assert np.abs(y[:4] - x[:4]).max() <= scale / 2 + 1e-6


@pytest.mark.parametrize(("name", "expected"), FIDELITY.items())
def test_fidelity_on_a_normal_distribution(name: str, expected: float) -> None:
    """The recorded figures are rounded to 0.1 dB; 2^20 samples vary by less than another 0.05 dB."""
    x = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    error = ops.quantize_dequantize(x, name).astype(np.float64) - x
    assert 10 * np.log10((x.astype(np.float64) ** 2).sum() / (error**2).sum()) == pytest.approx(
        expected, abs=0.1
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_block_formats_equal_their_operator_and_twin(name: str, dtype: Any) -> None:
    row = ops.FORMATS[name]
    rng = np.random.default_rng(0)
    for pattern in PATTERNS:
        with np.errstate(invalid="ignore", over="ignore"):
            x = make_pattern(pattern, (3, 33, 5), rng).astype(dtype)
        for axis in (0, 1, -1):
            attributes = {**row.attributes, "axis": axis}
            y = ops.quantize_dequantize(x, name, axis)
            assert_same(y, run_twin(row.op, attributes, x))
        assert_same(y, run_bits(block_session(row.op, attributes, dtype=x.dtype), x))


@pytest.mark.parametrize("name", NAMES)
def test_memory_layouts(name: str) -> None:
    """Transposed, reversed, strided and Fortran arrays give what their contiguous copies give."""
    x = np.random.default_rng(1).standard_normal((6, 40, 34), np.float32)
    for array in (x.T, x[::-1], x[:, ::2], np.asfortranarray(x), x.transpose(1, 0, 2), x[..., 3], x[0, 0]):
        for axis in range(-array.ndim, array.ndim):
            expected = ops.quantize_dequantize(np.ascontiguousarray(array), name, axis)
            assert_same(ops.quantize_dequantize(array, name, axis), expected)


@pytest.mark.parametrize("name", NAMES)
def test_out(name: str) -> None:
    x = np.random.default_rng(2).standard_normal((33, 40), np.float32)
    expected = ops.quantize_dequantize(x, name, 0)
    for out in (np.empty_like(x), np.empty_like(x.T).T, np.zeros((66, 40), np.float32)[::2], x.copy()):
        source = out if out.base is None and np.array_equal(out, x) else x
        assert ops.quantize_dequantize(source, name, 0, out=out) is out
        assert_same(out, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("name", NAMES)
def test_out_may_overlap_the_source_in_any_way(name: str, dtype: Any) -> None:
    """Oracle: the same numbers in an array of their own."""
    numbers = np.random.default_rng(4).standard_normal(9000).astype(dtype)
    for first, second in ((0, 1), (1, 0), (0, 700), (700, 0), (0, 4500)):
        memory = numbers.copy()
        x, out = (memory[start : start + 4096].reshape(64, 64) for start in (first, second))
        expected = ops.quantize_dequantize(x.copy(), name)
        assert_same(ops.quantize_dequantize(x, name, out=out), expected)
    square = numbers[:4096].reshape(64, 64).copy()
    expected = ops.quantize_dequantize(square.copy(), name)
    assert_same(ops.quantize_dequantize(square, name, out=square.T), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("name", [name for name in SCALARS if "int" in name])
def test_integers_give_finite_numbers_at_the_ends_of_a_type(name: str, dtype: Any) -> None:
    """By definition: integers saturate, and the scale takes numbers no further than the type's largest."""
    largest = float(ml_dtypes.finfo(dtype).max)
    steps = ops.FORMATS[name].highest - ops.FORMATS[name].lowest
    for ends in ([1, -1], [1, 0], [0, -1], [1, 1 / 3], [-1, 0.9], [1, -0.998, np.inf, -np.inf, np.nan]):
        x = (np.array(ends) * largest).astype(dtype)
        y = ops.quantize_dequantize(x, name).astype(np.float64)
        assert np.isfinite(y).all(), (ends, y)
        missed = (y - x.astype(np.float64))[np.isfinite(x)]
        assert np.abs(missed).max() <= (2.02 / steps + 2.0**-8) * largest


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3)])
def test_small_shapes(name: str, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    assert_same(ops.quantize_dequantize(x, name, -1 if shape else 0), x)


def test_reads_only_and_read_only() -> None:
    x = np.random.default_rng(3).standard_normal((8, 64), np.float32)
    copy = x.copy()
    x.flags.writeable = False
    ops.quantize_dequantize(x, "bfp16")
    assert np.array_equal(x, copy)


def test_integer_scales() -> None:
    x = np.array([-1.0, 0.5, 2.54, np.nan, np.inf], np.float32)
    assert choose_scale(x, ops.FORMATS["int8"]) == (pytest.approx(2.54 / 127), 0)
    assert choose_scale(x, ops.FORMATS["uint8"]) == (pytest.approx(3.54 / 255), 72)
    assert choose_scale(np.zeros(3, np.float32), ops.FORMATS["int8"]) == (1.0, 0)
    y = ops.quantize_dequantize(x, "int8")
    assert np.abs(y[:3] - x[:3]).max() <= 2.54 / 127 / 2 + 1e-6


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: ops.quantize_dequantize(x, "mx5"), "format 'mx5' is unknown, legal are int2"),
        (lambda x: ops.quantize_dequantize(x, "mx4", 2), "axis 2 is out of range for an array of rank 2"),
        (lambda x: ops.quantize_dequantize(x.astype(float), "mx4"), "float64 cannot be rounded"),
        (lambda x: ops.quantize_dequantize(x, "mx4", out=x[:1].copy()), r"out is float32\[1, 3\]"),
        (lambda x: ops.quantize_dequantize(x, "mx4", out=x.astype(np.float16)), "out is float16"),
    ],
)
def test_errors(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(np.ones((2, 3), np.float32))
