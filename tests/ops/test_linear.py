"""ExtendedQuantizeLinear and ExtendedDequantizeLinear. Oracles: recorded vectors, twin, ml_dtypes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import ops
from ops import reference
from tests.helpers.number_patterns import PATTERNS, make_pattern
from tests.helpers.operator_sessions import (
    BFLOAT16,
    DEQUANTIZE,
    DOMAINS,
    GOLDEN,
    QUANTIZE,
    assert_same,
    make_session,
    onnx_type,
)

VECTORS = sorted(GOLDEN.glob("*Extended*.npz"))
INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32"]
TYPES = [*INTEGERS, "float16", "bfloat16"]


def make_dtype(name: str) -> np.dtype[Any]:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def run_pair(
    x: NDArray[np.float32], scale: Any, zero_point: NDArray[Any], axis: int = 0, domain: str = ops.DOMAIN
) -> NDArray[np.float32]:
    constants = {"scale": np.asarray(scale, np.float32), "zero": zero_point}
    nodes = [
        helper.make_node(QUANTIZE, ["x", "scale", "zero"], ["q"], domain=domain, axis=axis, name="q1"),
        helper.make_node(DEQUANTIZE, ["q", "scale", "zero"], ["y"], domain=domain, axis=axis, name="d1"),
    ]
    session = make_session(nodes, TensorProto.FLOAT, TensorProto.FLOAT, constants=constants, domain=domain)
    return session.run(None, {"x": x})[0]


def twin_pair(x: NDArray[np.float32], scale: Any, zero_point: NDArray[Any], axis: int = 0) -> NDArray[Any]:
    scale = np.asarray(scale, np.float32)
    with np.errstate(invalid="ignore"):
        quantized = reference.quantize_linear(x, scale, zero_point, axis)
        return reference.dequantize_linear(quantized, scale, zero_point, axis)


@pytest.mark.skipif(not VECTORS, reason="the recorded vectors are not there")
@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_recorded_vectors(path: Path) -> None:
    data = np.load(path)
    attributes = json.loads(str(data["attrs"]))
    zero_point = np.asarray(attributes["zero_point"]).astype(make_dtype(attributes["zp_type"]))
    for domain in DOMAINS:
        y = run_pair(data["x"], attributes["scale"], zero_point, attributes.get("axis", 0), domain)
        assert np.array_equal(y, data["y"], equal_nan=True)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", TYPES)
def test_per_tensor_equals_twin(name: str, pattern: str) -> None:
    rng = np.random.default_rng([ord(c) for c in name + pattern])
    x = make_pattern(pattern, (5, 331), rng)
    for scale, zero in [(1.0, 0), (0.37, 3), (1e-3, 100)]:
        zero_point = np.array(zero).astype(make_dtype(name))
        assert_same(run_pair(x, scale, zero_point), twin_pair(x, scale, zero_point))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("name", TYPES)
def test_per_channel_equals_twin(name: str, axis: int) -> None:
    rng = np.random.default_rng(axis + 9)
    x = rng.standard_normal((4, 5, 6), np.float32) * 30
    scale = rng.uniform(0.1, 2, x.shape[axis]).astype(np.float32)
    for zero_point in (rng.integers(0, 9, scale.size), np.array(7)):
        typed = zero_point.astype(make_dtype(name))
        assert_same(run_pair(x, scale, typed, axis), twin_pair(x, scale, typed, axis))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_saturate(name: str) -> None:
    """Exact by definition: infinities and huge numbers go to the ends of the range, NaN to the zero point."""
    limits = np.iinfo(name)
    x = np.array([np.inf, -np.inf, 3e38, -3e38, np.nan, 2.5, 3.5, -0.5], np.float32)
    constants = {"scale": np.float32(1), "zero": np.array(5, name)}
    node = helper.make_node(QUANTIZE, ["x", "scale", "zero"], ["y"], domain=ops.DOMAIN)
    session = make_session(
        [node], 1, onnx_type(np.dtype(name)), constants={k: np.asarray(v) for k, v in constants.items()}
    )
    y = session.run(None, {"x": x})[0]
    assert y.tolist() == [limits.max, limits.min, limits.max, limits.min, 5, 7, 9, 5]


def test_bfloat16_equals_ml_dtypes_on_every_upper_half() -> None:
    """Oracle: ml_dtypes. All upper halves of float32 with the lower halves around a tie."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    bits = np.concatenate([upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    x = bits.view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = x.astype(BFLOAT16).astype(np.float32)
    assert_same(run_pair(x, 1.0, np.zeros((), BFLOAT16)), expected)


def test_large_tensor_on_two_threads() -> None:
    x = np.random.default_rng(0).standard_normal((300, 1001), np.float32)
    scale = np.linspace(0.5, 2, 1001, dtype=np.float32)
    zero_point = np.zeros((), np.int8)
    assert_same(run_pair(x, scale, zero_point, 1), twin_pair(x, scale, zero_point, 1))


@pytest.mark.parametrize(
    ("scale", "zero", "axis", "words"),
    [
        (np.ones(3), np.zeros((), np.int8), 1, "3 elements, legal are 1 or the 5 of axis 1"),
        (np.ones(5), np.zeros(4, np.int8), 1, "zero_point has 4 elements"),
        (np.ones((5, 1)), np.zeros((), np.int8), 1, "scale has 5 elements"),
    ],
)
def test_shapes_that_do_not_fit(scale: Any, zero: Any, axis: int, words: str) -> None:
    with pytest.raises(Exception, match=words):
        run_pair(np.ones((4, 5), np.float32), scale, zero, axis)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_other_input_types_are_refused_at_load(dtype: Any) -> None:
    node = helper.make_node(QUANTIZE, ["x", "scale", "zero"], ["y"], domain=ops.DOMAIN)
    constants = {"scale": np.ones((), np.float32), "zero": np.zeros((), np.int8)}
    with pytest.raises(Exception, match="Type Error"):
        make_session([node], onnx_type(dtype), TensorProto.INT8, constants=constants)
