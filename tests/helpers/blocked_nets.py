"""Small models whose layers sum over more than 32 numbers, and their weights as NumPy reads them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.helpers import build


def numbers(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Return weights whose sums are of the size of 1."""
    return (random.standard_normal(shape) / np.sqrt(max(shape))).astype(np.float32)


def convolutions(seed: int = 0) -> onnx.ModelProto:
    """Return x [n, 70, 5, 5] through Conv, grouped Conv, ConvTranspose with and without groups, to y."""
    random = np.random.default_rng(seed)
    weights = {
        "w1": numbers(random, 80, 70, 3, 3),
        "b1": numbers(random, 80),
        "w2": numbers(random, 6, 40, 3, 3),
        "w3": numbers(random, 6, 33, 2, 2),
        "w4": numbers(random, 33, 4, 2, 2),
        "w5": numbers(random, 4, 5, 1, 1),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "grouped", group=2),
        helper.make_node("ConvTranspose", ["c2", "w3"], ["c3"], "short", strides=[2, 2]),
        helper.make_node("ConvTranspose", ["c3", "w4"], ["c4"], "transposed"),
        helper.make_node("ConvTranspose", ["c4", "w5"], ["y"], "in_groups", group=2),
    ]
    ends = build.value("x", ["n", 70, 5, 5]), build.value("y", ["n", 10, 7, 7])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


def products(seed: int = 0) -> onnx.ModelProto:
    """Return x [n, 100] through Gemm both ways, MatMul, and a short MatMul, with and without bias, to y."""
    random = np.random.default_rng(seed)
    weights = {
        "w1": numbers(random, 100, 65),
        "b1": numbers(random, 65),
        "w2": numbers(random, 48, 65),
        "w3": numbers(random, 48, 33),
        "b3": numbers(random, 33),
        "w4": numbers(random, 33, 20),
        "w5": numbers(random, 20, 7),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["g1"], "first"),
        helper.make_node("Relu", ["g1"], ["r1"], "relu1"),
        helper.make_node("Gemm", ["r1", "w2"], ["g2"], "turned", transB=1),
        helper.make_node("Relu", ["g2"], ["r2"], "relu2"),
        helper.make_node("MatMul", ["r2", "w3"], ["m3"], "product"),
        helper.make_node("Add", ["m3", "b3"], ["a3"], "add"),
        helper.make_node("Gemm", ["a3", "w4"], ["g4"], "scaled", alpha=0.5),
        helper.make_node("MatMul", ["g4", "w5"], ["y"], "short"),
    ]
    ends = build.value("x", ["n", 100]), build.value("y", ["n", 7])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


def stacks(seed: int = 0) -> onnx.ModelProto:
    """Return x [3, 40, 5] on the right of a stack of matrices, then of a matrix, to y [3, 6, 5]."""
    random = np.random.default_rng(seed)
    weights = {"w1": numbers(random, 3, 35, 40), "w2": numbers(random, 6, 35)}
    nodes = [
        helper.make_node("MatMul", ["w1", "x"], ["m1"], "stack"),
        helper.make_node("MatMul", ["w2", "m1"], ["y"], "left"),
    ]
    ends = build.value("x", [3, 40, 5]), build.value("y", [3, 6, 5])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


def decoded(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return the numbers that each DequantizeLinear of stored integers makes, by its output."""
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            q, scale, *rest = (stored[name] for name in node.input)
            attrs = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            zero = rest[0].astype(np.int64) if rest else np.zeros(scale.shape, np.int64)
            found[node.output[0]] = (q.astype(np.int64) - _spread(zero, q.shape, attrs)).astype(
                np.float32
            ) * _spread(scale, q.shape, attrs)
    return found


def _spread(part: np.ndarray, shape: tuple[int, ...], attrs: dict[str, int]) -> np.ndarray:
    if part.ndim == 0:
        return part
    axis = attrs.get("axis", 1)
    if "block_size" in attrs:
        return np.take(part, np.arange(shape[axis]) // attrs["block_size"], axis)
    return part.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])


def with_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that reads its decoded weights as float initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    weights = decoded(model)
    nodes = [node for node in copy.graph.node if node.output[0] not in weights]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    copy.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return copy
