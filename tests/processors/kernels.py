"""ONNX Runtime's kernels of uint8 by int8, each as a model, and what they add up in pairs.

Activations are [M, K], weights [K, N] in the order of the sum. int8 activations are not here: kernels that
read them are exact, but between QuantizeLinear and DequantizeLinear the runtime makes them uint8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ops.pair_sums import pair_sums
from tests.helpers import build

Codes = NDArray[np.uint8]
Weights = NDArray[np.int8]

_STEP = 300
"""Scale of outputs of 8 bits: two products 255 x 127 are 216 steps, and 109 where they saturate."""

_RESULTS = {"MatMulInteger": np.int32, "MatMulIntegerToFloat": np.float32, "QGemm": np.float32}
"""Types of outputs that hold the sums themselves."""

_INPUTS = {
    "MatMulInteger": "x w zx",
    "MatMulIntegerToFloat": "x w one one zx zw",
    "QGemm": "x one zx w one zw",
    "QLinearMatMul": "x one zx w one zw step zx",
    "QLinearConv": "x one zx w one zw step zx",
}
_CONTRIB = ("MatMulIntegerToFloat", "QGemm")


@dataclass(frozen=True)
class Kernel:
    """A model of one kernel, its input, and the numbers that it makes."""

    name: str
    model: onnx.ModelProto
    x: Codes
    wanted: NDArray


@dataclass(frozen=True)
class Window:
    """A convolution of one place: channels of each group, height and width of the kernel, groups."""

    channels: int
    height: int
    width: int
    groups: int = 1

    @property
    def length(self) -> int:
        """The number of products in a sum."""
        return self.channels * self.height * self.width

    @property
    def is_depthwise(self) -> bool:
        """Whether a kernel of its own adds in 32 bits."""
        return self.channels == 1 and self.groups > 1


WINDOWS = (
    Window(1, 3, 3), Window(3, 2, 2), Window(4, 3, 3), Window(6, 1, 1), Window(2, 1, 5), Window(3, 2, 1, 2),
    Window(1, 3, 3, 36),
)  # fmt: skip


def pairs(length: int) -> Weights:
    """Return a column of weights for each two places of a sum, with the largest number at both."""
    chosen = list(combinations(range(length), 2))
    weights = np.zeros((length, len(chosen)), np.int8)
    for column, places in enumerate(chosen):
        weights[places, column] = 127
    return weights


def kernels() -> Iterator[Kernel]:
    """Yield each kernel on the largest activations with each pair of large weights, and on random numbers."""
    random = np.random.default_rng(5)
    for name in _INPUTS:
        if name != "QLinearConv":
            yield _product(name, np.full((3, 9), 255, np.uint8), pairs(9))
    yield from map(_convolution, WINDOWS)
    for length in (1, 2, 7, 64, 129):
        codes = random.integers(0, 256, (5, length)).astype(np.uint8)
        yield _product("MatMulInteger", codes, random.integers(-128, 128, (length, 19)).astype(np.int8))


def _product(op: str, codes: Codes, weights: Weights) -> Kernel:
    return _kernel(f"{op} of {len(weights)}", op, codes, weights, pair_sums(codes, weights))


def _convolution(window: Window) -> Kernel:
    """Return a convolution of an image of the size of its kernel; each group has all pairs of weights."""
    columns = pairs(window.length)
    if window.is_depthwise:
        sums = np.full(columns.shape[1], 2 * 255 * 127)
    else:
        sums = np.tile(pair_sums(np.full((1, window.length), 255), columns)[0], window.groups)
        columns = np.tile(columns, window.groups)
    places = columns.T.reshape(-1, window.height, window.width, window.channels)
    codes = np.full((1, window.channels * window.groups, window.height, window.width), 255, np.uint8)
    weights = np.ascontiguousarray(places.transpose(0, 3, 1, 2))
    return _kernel(f"{window}", "QLinearConv", codes, weights, sums.reshape(1, -1, 1, 1), group=window.groups)


def _kernel(
    name: str, op: str, codes: Codes, weights: Weights, sums: NDArray[np.int64], **attributes: int
) -> Kernel:
    """Return a kernel on activations and weights without zero points, and what it makes of the sums."""
    zero, one = np.array(0), np.array(1, np.float32)
    known: dict[str, NDArray] = {"w": weights, "zx": zero.astype(np.uint8), "zw": zero.astype(np.int8)}
    known |= {"one": one, "step": _STEP * one}
    inputs = _INPUTS[op].split()
    node = helper.make_node(op, inputs, ["y"], domain="com.microsoft" * (op in _CONTRIB), **attributes)
    ends = build.value("x", codes.shape, np.uint8), build.value("y", sums.shape, _RESULTS.get(op, np.uint8))
    stored = [numpy_helper.from_array(array, key) for key, array in known.items() if key in inputs]
    graph = helper.make_graph([node], "kernel", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return Kernel(name, model, codes, sums if op in _RESULTS else np.rint(sums / _STEP))
