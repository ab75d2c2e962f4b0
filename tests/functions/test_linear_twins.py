"""The functions of the Extended operators equal the kernels: sessions without library against ops.reference.

Oracle: :mod:`ops.reference`, and the golden vectors of the reference implementation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from ops import reference
from tests.helpers.operator_sessions import BFLOAT16, DEQUANTIZE, GOLDEN, QUANTIZE, assert_same, run_bits
from tests.helpers.twin_sessions import linear_operator, open_session, run_without_library
from transforms.functions.attach_functions import attach_functions

TYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16"]
OPSETS = [13, 17, 21]
HALVES = [
    0,
    0.5,
    1.5,
    2.5,
    65503,
    65504,
    65520,
    65536,
    2.0**31,
    2.0**32,
    1e38,
    2.0**-24,
    2.0**-126,
    2.0**-149,
]
SPECIAL = np.float32([*HALVES, *(-x for x in HALVES), np.inf, -np.inf, np.nan])


def numbers(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    """Return numbers of all sizes: special ones, random bits, and small ones with ties."""
    rng = np.random.default_rng(seed)
    bits = np.asarray(rng.integers(0, 2**32, shape, dtype=np.uint32)).view(np.float32)
    plain = np.rint(rng.standard_normal(shape) * 600) / 2
    mixed = np.choose(rng.integers(0, 3, shape), [bits, plain, rng.choice(SPECIAL, shape)])
    return np.asarray(mixed, np.float32)


def stored(name: str, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    """Return numbers of a type with random bits."""
    dtype = BFLOAT16 if name == "bfloat16" else np.dtype(name)
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return bits.view(dtype).reshape(shape)


def zero(name: str, values: Any) -> NDArray[Any]:
    return np.asarray(values).astype(BFLOAT16 if name == "bfloat16" else name)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", TYPES)
def test_quantize_per_tensor(name: str, opset: int) -> None:
    x = numbers((5, 331))
    for scale, point in [(1.0, 0), (0.37, 3), (1e-3, 100), (-2.0, 0), (1e-38, 1)]:
        factor, zero_point = np.float32(scale), zero(name, point)
        found = run_without_library(linear_operator(QUANTIZE, x, factor, zero_point, opset=opset), x)
        assert_same(found, reference.quantize_linear(x, factor, zero_point))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", TYPES)
def test_dequantize_per_tensor(name: str, opset: int) -> None:
    y = stored(name, (5, 331))
    for scale, point in [(1.0, 0), (0.37, 3), (1e-3, 100), (-2.0, 0)]:
        factor, zero_point = np.float32(scale), zero(name, point)
        found = run_without_library(linear_operator(DEQUANTIZE, y, factor, zero_point, opset=opset), y)
        assert_same(found, reference.dequantize_linear(y, factor, zero_point))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("name", TYPES)
def test_per_channel(name: str, axis: int) -> None:
    x = numbers((3, 4, 5))
    channels = x.shape[axis]
    scale = np.random.default_rng(1).uniform(0.01, 3, channels).astype(np.float32)
    for points in (2, range(channels)):
        zero_point = zero(name, points)
        found = run_without_library(linear_operator(QUANTIZE, x, scale, zero_point, axis), x)
        expected = reference.quantize_linear(x, scale, zero_point, axis)
        assert_same(found, expected)
        back = run_without_library(linear_operator(DEQUANTIZE, expected, scale, zero_point, axis), expected)
        assert_same(back, reference.dequantize_linear(expected, scale, zero_point, axis))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (1, 1)])
@pytest.mark.parametrize("name", ["int32", "bfloat16"])
def test_every_shape(name: str, shape: tuple[int, ...]) -> None:
    x = numbers(shape)
    for scale in (np.float32(0.5), np.float32([0.5]), np.float32([[0.5]])):
        zero_point = zero(name, [1])
        found = run_without_library(linear_operator(QUANTIZE, x, scale, zero_point, opset=13), x)
        expected = np.asarray(reference.quantize_linear(x, scale, zero_point))
        assert_same(found, expected)
        back = run_without_library(linear_operator(DEQUANTIZE, expected, scale, zero_point), expected)
        assert_same(back, np.asarray(reference.dequantize_linear(expected, scale, zero_point)))


@pytest.mark.parametrize("axis", [-3, 0, 2])
def test_what_does_not_fit_is_refused(axis: int) -> None:
    x, scale = numbers((2, 3)), np.float32([1, 2, 3])
    with pytest.raises(Exception, match="node"):
        run_without_library(linear_operator(QUANTIZE, x, scale, np.int16(0), axis), x)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_all_narrow_numbers(name: str) -> None:
    y = np.arange(2**16, dtype=np.uint16).view(BFLOAT16 if name == "bfloat16" else name)
    for scale, point in [(1.0, 0), (0.3, 1.5)]:
        factor, zero_point = np.float32(scale), zero(name, point)
        found = run_without_library(linear_operator(DEQUANTIZE, y, factor, zero_point), y)
        assert_same(found, reference.dequantize_linear(y, factor, zero_point))


VECTORS = sorted(GOLDEN.glob("*Extended*.npz"))


@pytest.mark.skipif(not VECTORS, reason="no golden vectors here")
@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vectors_of_the_reference_implementation(path: Path) -> None:
    """A number goes through both functions, one after the other."""
    with np.load(path, allow_pickle=False) as data:
        x, y, attributes = data["x"], data["y"], json.loads(str(data["attrs"]))
    scale, axis = np.asarray(attributes["scale"], np.float32), attributes.get("axis", 0)
    zero_point = zero(attributes["zp_type"], attributes["zero_point"])
    stored = run_without_library(linear_operator(QUANTIZE, x, scale, zero_point, axis), x)
    found = run_without_library(linear_operator(DEQUANTIZE, stored, scale, zero_point, axis), stored)
    assert np.array_equal(found, y, equal_nan=True)  # the sign of zero is not compared


WEIGHT = """
    <ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]>
    dense (float[N, 384] x) => (float[N, 384] y)
    <float scale = {SCALE}, KIND zero = {0}, KIND[384, 384] stored> {
        w = ai.onnx.contrib.ExtendedDequantizeLinear (stored, scale, zero)
        y = MatMul (x, w)
    }"""


@pytest.mark.parametrize(("name", "scale"), [("bfloat16", 1), ("float16", 1), ("int32", 2.0**-31)])
def test_products_with_stored_weights_are_the_same_with_and_without_the_library(
    name: str, scale: float
) -> None:
    """Optimized, as sessions are: a folded weight would go to a kernel that adds in another order."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((384, 384)) / (8 * scale)
    model = onnx.parser.parse_model(WEIGHT.replace("KIND", name).replace("SCALE", str(scale)))
    kept = [tensor for tensor in model.graph.initializer if tensor.name != "stored"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, numpy_helper.from_array(zero(name, w), "stored")])
    assert attach_functions(model) == 1
    for rows in (1, 5, 64):
        x = rng.standard_normal((rows, 384)).astype(np.float32)
        native, plain = (run_bits(open_session(model, library=library), x) for library in (True, False))
        assert_same(plain, native)
