"""The functions of the block operators equal the kernels: sessions without library against ops.reference.

Oracle: :mod:`ops.reference`, and the golden vectors of the reference implementation.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.formats import ATTRIBUTES, FORMATS
from ops.reference import ELEMENTS
from tests.helpers.operator_sessions import BFP, GOLDEN, MX, assert_same, run_bits, run_twin
from tests.helpers.spread import spread
from tests.helpers.twin_sessions import one_operator, open_session, run_without_library

SHAPES = [(4, 35), (3, 64, 5), (2, 40, 3, 3), (7,), (1,), (), (1, 1), (0, 3), (3, 0), (2, 3, 4, 0), (0,)]
ODD = [0, 0.5, 1, 1.5, 2, 3, 127, 127.5, 128, 255.5, 2.0**-126, 2.0**-127, 2.0**-149, 3.4028235e38]
SPECIAL = np.float32([*ODD, *(-x for x in ODD), np.inf, -np.inf, np.nan])


def random_bits(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return float32 of random bits: every exponent, subnormal numbers, NaN, Inf."""
    size = int(np.prod(shape))
    bits = np.random.default_rng(seed).integers(0, 2**32, size, dtype=np.uint32)
    return bits.view(np.float32).reshape(shape)


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return normal numbers of many magnitudes, in quarters of units, so that there are ties."""
    rng = np.random.default_rng(seed)
    x = np.rint(rng.standard_normal(shape) * 64) / 4 * 2.0 ** rng.integers(-3, 4, shape)
    return np.asarray(x, np.float32)


def special(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return numbers at the borders: zeros of both signs, powers of two, subnormal, largest, Inf, NaN."""
    return np.asarray(np.random.default_rng(seed).choice(SPECIAL, shape), np.float32)


def check(op: str, attributes: dict[str, Any], shapes: list[tuple[int, ...]], **more: Any) -> None:
    session = open_session(one_operator(op, attributes, **more), library=False)
    for shape in shapes:
        for make in (random_bits, normal, special):
            x = make(shape)
            assert_same(run_bits(session, x), run_twin(op, attributes, x))


PLAIN = [
    {"bit_width": w, "block_size": b, "rounding_mode": r}
    for w, b, r in product((10, 16, 24), (1, 8, 33), range(3))
]
COMPILER = [
    {"use_compiler_version_cpu_kernel": 1, "block_size": b, "rounding_mode": r}
    for b, r in product((8, 5), range(3))
]
PRIME = [
    {
        "bfp_method": method,
        "bit_width": w,
        "block_size": b,
        "sub_block_size": s,
        "sub_block_shift_bits": d,
        "rounding_mode": r,
    }
    for method, w, (b, s), d, r in product(
        ("to_bfp_prime", "to_bfp_prime_shared"),
        (11, 16, 24),
        ((16, 2), (8, 8), (6, 3)),
        (0, 1, 3, 8),
        range(3),
    )
][::5]
FIRST = [
    {"convert_to_bfloat_before_bfp": 1},
    {"convert_to_bfloat_before_bfp": 1, "bfp_method": "to_bfp_prime"},
]
LONG = [
    (BFP, {"block_size": 2**31 - 1}),
    (BFP, {"block_size": 2**30, "sub_block_size": 2**29, "bfp_method": "to_bfp_prime"}),
    (BFP, {"block_size": 2**30, "sub_block_size": 4, "bfp_method": "to_bfp_prime"}),
    (MX, {"block_size": 2**31 - 1}),
]
BFP_CASES = [{}, *PLAIN, *COMPILER, *PRIME, *FIRST]
MX_CASES = [
    {},
    {"rounding_mode": 7},
    {"block_size": 1},
    *(
        {"element_dtype": e, "scale_rule": rule, "rounding_mode": r}
        for e, rule in product(ELEMENTS, ATTRIBUTES[MX]["scale_rule"].legal)
        for r in ((0, 1, 2) if e == "int8" else (2,))
    ),
]


@pytest.mark.parametrize("attributes", spread(BFP_CASES, of=2), ids=str)
def test_bfp_equals_the_reference(attributes: dict[str, Any]) -> None:
    check(BFP, attributes, SHAPES)


@pytest.mark.parametrize("attributes", MX_CASES, ids=str)
def test_mx_equals_the_reference(attributes: dict[str, Any]) -> None:
    check(MX, attributes, SHAPES)


@pytest.mark.parametrize(("op", "attributes"), LONG, ids=str)
def test_blocks_longer_than_memory(op: str, attributes: dict[str, Any]) -> None:
    """Oracle: the native kernel, for ops.reference pads."""
    model = one_operator(op, attributes)
    native, twin = (open_session(model, library=library) for library in (True, False))
    for x in (normal((5, 35)), special((3, 7, 2)), random_bits((40,))):
        assert_same(run_bits(twin, x), run_bits(native, x))


@pytest.mark.parametrize("opset", [13, 14, 15, 18, 19, 21])
@pytest.mark.parametrize("op", [BFP, MX])
def test_every_opset(op: str, opset: int) -> None:
    check(op, {"block_size": 16}, SHAPES, opset=opset)


@pytest.mark.parametrize("axis", range(-4, 4))
@pytest.mark.parametrize("name", ["bfp16", "mx6", "mxfp6_e2m3"])
def test_every_axis(name: str, axis: int) -> None:
    attributes = {**FORMATS[name].attributes, "axis": axis}
    check(FORMATS[name].op, attributes, [(3, 17, 9, 35), (33, 1, 40, 2), (3, 0, 4, 5)])


@pytest.mark.parametrize("name", ["mx9", "mxint8"])
def test_an_axis_of_rank_1_is_ignored(name: str) -> None:
    check(FORMATS[name].op, {**FORMATS[name].attributes, "axis": 9}, [(40,), (1,), ()])


@pytest.mark.parametrize("axis", [-3, 2])
def test_an_axis_out_of_range_is_refused(axis: int) -> None:
    with pytest.raises(Exception, match="out of"):
        run_without_library(one_operator(BFP, {"axis": axis}), normal((4, 16)))


@pytest.mark.parametrize("shape", [(4, 35), (1,), (), (0, 8)])
@pytest.mark.parametrize("name", ["bfp16", "mx4", "mxfp8_e5m2"])
def test_known_shapes(name: str, shape: tuple[int, ...]) -> None:
    """The sizes are constants, which the runtime folds."""
    check(FORMATS[name].op, dict(FORMATS[name].attributes), [shape], shape=list(shape))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["bfp16", "mx9", "mxint8", "mxfp4", "mxfp8_e5m2"])
@pytest.mark.parametrize("opset", [13, 17])
def test_narrow_types(name: str, dtype: Any, opset: int) -> None:
    """All 65,536 numbers, in blocks of random neighbours."""
    fmt = FORMATS[name]
    bits = np.random.default_rng(0).permutation(2**16).astype(np.uint16).reshape(64, 1024)
    model = one_operator(fmt.op, dict(fmt.attributes), dtype=dtype, opset=opset)
    x = bits.view(dtype)
    assert_same(run_without_library(model, x), run_twin(fmt.op, dict(fmt.attributes), x))


@pytest.mark.parametrize("name", ["bfp16", "mx9", "mxint8", "mxfp8_e4m3"])
def test_every_power_of_two(name: str) -> None:
    """The exponent of every power of two and of its two neighbours, which a logarithm gets wrong."""
    powers = np.ldexp(np.float64(1), np.arange(-149, 128)).astype(np.float32)
    x = np.concatenate([powers, np.nextafter(powers, 0), np.nextafter(powers, np.float32(np.inf))])
    x = np.stack([x, x * np.float32(0.3)], 1)
    attributes = {**FORMATS[name].attributes, "block_size": 2}
    for axis in (0, 1):
        found = run_without_library(one_operator(FORMATS[name].op, attributes | {"axis": axis}), x)
        assert_same(found, run_twin(FORMATS[name].op, attributes | {"axis": axis}, x))


@pytest.mark.parametrize("name", ["bfp16", "mx9", "mxint8", "mxfp6_e3m2"])
def test_a_session_that_optimizes_nothing(name: str) -> None:
    fmt, x = FORMATS[name], special((16, 40))
    model = one_operator(fmt.op, dict(fmt.attributes))
    assert_same(run_without_library(model, x, optimize=False), run_twin(fmt.op, dict(fmt.attributes), x))


WORDS = st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=40)


@settings(max_examples=150, deadline=None)
@given(words=WORDS, name=st.sampled_from(["bfp16", "mx4", "mx6", "mx9", "mxint8", "mxfp8_e4m3", "mxfp4"]))
def test_any_numbers(words: list[int], name: str) -> None:
    x, fmt = np.uint32(words).view(np.float32), FORMATS[name]
    assert_same(run_bits(_session(name), x), run_twin(fmt.op, dict(fmt.attributes), x))


_SESSIONS: dict[str, Any] = {}


def _session(name: str) -> Any:
    if name not in _SESSIONS:
        fmt = FORMATS[name]
        _SESSIONS[name] = open_session(one_operator(fmt.op, dict(fmt.attributes)), library=False)
    return _SESSIONS[name]


VECTORS = [path for path in sorted(GOLDEN.glob("*.npz")) if "QuantizeDequantize" in path.name]


@pytest.mark.skipif(not VECTORS, reason="no golden vectors here")
@pytest.mark.parametrize("path", spread(VECTORS, of=2))
def test_vectors_of_the_reference_implementation(path: Any) -> None:
    with np.load(path, allow_pickle=False) as data:
        x, y, op = data["x"], data["y"], str(data["op"])
        attributes = json.loads(str(data["attrs"]))
    found = run_without_library(one_operator(op, attributes, dtype=x.dtype), x)
    assert np.array_equal(found, y, equal_nan=True)  # the sign of zero is not compared
