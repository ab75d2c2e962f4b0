"""BFPQuantizeDequantize and MXQuantizeDequantize. Oracles: recorded vectors, the NumPy twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ops
from ops import reference
from tests.helpers.number_patterns import PATTERNS, make_pattern
from tests.helpers.operator_sessions import (
    BFLOAT16,
    BFP,
    DOMAINS,
    GOLDEN,
    MX,
    assert_same,
    block_session,
    run_bits,
    run_twin,
)
from tests.helpers.spread import spread

VECTORS = sorted(GOLDEN.glob("*QuantizeDequantize_*.npz"))
SHAPES = [
    (7,),
    (40,),
    (3, 37),
    (5, 64),
    (2, 5, 9),
    (2, 33, 7),
    (3, 2, 17, 5),
    (4, 33, 40),
    (2, 1100),
    (1100, 2),
]
BLOCK_SIZES = [1, 2, 3, 7, 8, 12, 16, 31, 32, 33, 64, 1024, 2048]


def random_attributes(op: str, rng: np.random.Generator) -> dict[str, Any]:
    block = int(rng.choice(BLOCK_SIZES))
    mode = int(rng.integers(3))
    if op == MX:
        element = str(rng.choice(list(reference.ELEMENTS)))
        rule = str(rng.choice(["floor", "ceil", "even", "rceil"]))
        return {"element_dtype": element, "block_size": block, "rounding_mode": mode, "scale_rule": rule}
    common = {"bit_width": int(rng.integers(10, 25)), "block_size": block, "rounding_mode": mode}
    common["convert_to_bfloat_before_bfp"] = int(rng.integers(2))
    kind = rng.integers(3)
    if kind == 0:
        return {**common, "use_compiler_version_cpu_kernel": 1, "bit_width": 16}
    if kind == 1:
        return common
    sub = int(rng.choice([n for n in range(1, block + 1) if block % n == 0]))
    shift = int(rng.integers(9))
    return {**common, "bfp_method": "to_bfp_prime", "sub_block_size": sub, "sub_block_shift_bits": shift}


@pytest.mark.skipif(not VECTORS, reason="the recorded vectors are not there")
@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_recorded_vectors(path: Path) -> None:
    data = np.load(path)
    op, attributes, x = str(data["op"]), json.loads(str(data["attrs"])), data["x"]
    for domain in DOMAINS:
        y = run_bits(block_session(op, attributes, dtype=x.dtype, domain=domain), x)
        assert np.array_equal(y, data["y"], equal_nan=True)
    assert_same(y, run_twin(op, attributes, x))


@pytest.mark.parametrize(("op", "pattern"), spread([BFP, MX], PATTERNS, of=2))
def test_operator_equals_twin(op: str, pattern: str) -> None:
    rng = np.random.default_rng([ord(c) for c in op + pattern])
    for i in range(24):
        shape = SHAPES[rng.integers(len(SHAPES))]
        axis = int(rng.integers(-len(shape), len(shape)))
        attributes = {**random_attributes(op, rng), "axis": axis}
        with np.errstate(invalid="ignore", over="ignore"):
            x = make_pattern(pattern, shape, rng).astype([np.float32, np.float16, BFLOAT16][i % 3])
        y = run_bits(block_session(op, attributes, dtype=x.dtype, domain=DOMAINS[i % 2]), x)
        assert_same(y, run_twin(op, attributes, x))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", [BFP, MX])
def test_large_tensors_on_threads(op: str, axis: int, threads: int) -> None:
    """Large enough for several pieces of work; the sizes are no multiples of block or tile."""
    x = np.random.default_rng(1).standard_normal((7, 331, 130), np.float32)
    y = block_session(op, {"axis": axis}, threads=threads).run(None, {"x": x})[0]
    assert_same(y, run_twin(op, {"axis": axis}, x))


def test_writing_past_the_caches_is_exact() -> None:
    """A tensor above the size from which the kernels stream, rows and columns."""
    x = np.random.default_rng(2).standard_normal((1030, 4099), np.float32)
    for axis in (0, 1):
        attributes = {"axis": axis, "block_size": 16}
        assert_same(block_session(BFP, attributes).run(None, {"x": x})[0], run_twin(BFP, attributes, x))


@pytest.mark.parametrize("op", [BFP, MX])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1), (0,), (4, 0), (2, 0, 3)])
def test_one_element_is_unchanged_and_nothing_stays_nothing(op: str, shape: tuple[int, ...]) -> None:
    x = np.full(shape, 1.2345678, np.float32)
    assert_same(block_session(op, {}).run(None, {"x": x})[0], x)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("op", [BFP, MX])
def test_one_narrow_element_is_unchanged_after_a_large_tensor(
    op: str, shape: tuple[int, ...], dtype: Any
) -> None:
    """What a large float32 tensor leaves on the stack says that numbers are written past the caches."""
    large = np.ones((1030, 4099), np.float32)
    x = np.full(shape, 1.234, dtype)
    block_session(op, {}).run(None, {"x": large})
    ops.quantize_dequantize(large, "bfp16")
    assert_same(run_bits(block_session(op, {}, dtype=dtype), x), x)
    assert_same(ops.quantize_dequantize(x, "mxint8" if op == MX else "bfp16"), x)


def test_one_element_takes_the_bfloat16_step() -> None:
    x = np.array([1.2345678], np.float32)
    y = block_session(BFP, {"convert_to_bfloat_before_bfp": 1}).run(None, {"x": x})[0]
    assert_same(y, x.astype(BFLOAT16).astype(np.float32))


def test_every_attribute_matters() -> None:
    """Changing any attribute of a Microexponent node changes the result."""
    x = np.random.default_rng(3).standard_normal((32, 32), np.float32)
    base = {"bfp_method": "to_bfp_prime", "bit_width": 12, "block_size": 16, "sub_block_size": 2}
    x[::2] = np.round(x[::2] * 8) / 8  # so that there are ties
    plain = block_session(BFP, base).run(None, {"x": x})[0]
    changes = [
        {"bfp_method": "to_bfp"},
        {"axis": 0},
        {"bit_width": 13},
        {"block_size": 8},
        {"rounding_mode": 2},
        {"sub_block_size": 4},
        {"sub_block_shift_bits": 3},
        {"convert_to_bfloat_before_bfp": 1, "bit_width": 24},
    ]
    for change in changes:
        y = block_session(BFP, {**base, **change}).run(None, {"x": x})[0]
        assert not np.array_equal(y, plain), change
    compiler = {"rounding_mode": 2, "use_compiler_version_cpu_kernel": 1}
    edge = np.full((1, 8), 127.75 / 64, np.float32)
    one, other = (block_session(BFP, a).run(None, {"x": edge})[0] for a in (compiler, {"rounding_mode": 2}))
    assert one[0, 0] == 2 and other[0, 0] == 127 / 64


@pytest.mark.parametrize(("rule", "scale"), [("floor", 1), ("ceil", 2), ("even", 2), ("rceil", 2)])
def test_scale_rules(rule: str, scale: int) -> None:
    """fp4 has 1, 1.5, 2, 3, 4, 6: a block up to 7.5 clips at scale 1, or loses the odd steps at scale 2."""
    x = np.array([[7.5, 1.5, 3.0, 0.5]], np.float32)
    attributes = {"element_dtype": "fp4_e2m1", "block_size": 4, "scale_rule": rule}
    y = block_session(MX, attributes).run(None, {"x": x})[0]
    expected = {1: [6.0, 1.5, 3.0, 0.5], 2: [8.0, 2.0, 3.0, 0.0]}[scale]
    assert y.tolist() == [expected]
    assert_same(y, run_twin(MX, attributes, x))
