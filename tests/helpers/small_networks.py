"""Networks of a few nodes with what converters fuse, for tests that try every choice of nodes."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper

from tests.helpers import build

SHAPES: dict[str, tuple[int, ...]] = {
    "w": (4, 4, 3, 3), "s": (4,), "b": (4,), "m": (4,), "v": (4,), "d": (4, 3), "c": (3,),
}  # fmt: skip


def residual(*, named: bool = True, dtype: DTypeLike = np.float32, seed: int = 3) -> onnx.ModelProto:
    """Return a residual block and a classifier; BatchNorm goes into Conv, and the bias into MatMul."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"], "norm"),
        node("Relu", ["n"], ["r"], "relu[0]"),
        node("Add", ["r", "x"], ["q"], "add"),
        node("GlobalAveragePool", ["q"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flat"),
        node("MatMul", ["f", "d"], ["e"], "dense"),
        node("Add", ["e", "c"], ["y"], "bias"),
    ]
    for one in nodes:
        one.name = one.name if named else ""
    draw = np.random.default_rng(seed)
    weights = {name: draw.random(shape).astype(dtype) for name, shape in SHAPES.items()}
    ends = build.value("x", ["N", 4, 6, 6], dtype), build.value("y", ["N", 3], dtype)
    return build.model(nodes, ends[:1], ends[1:], weights)


def images(count: int = 2, dtype: DTypeLike = np.float32, seed: int = 0) -> list[dict[str, NDArray]]:
    """Return feeds of the network."""
    draw = np.random.default_rng(seed)
    return [{"x": draw.standard_normal((1, 4, 6, 6)).astype(dtype)} for _ in range(count)]


def branches(seed: int = 5) -> onnx.ModelProto:
    """Return products on one input, of which two are merged and one takes in a sum; no node has a name."""
    node = helper.make_node
    nodes = [
        node("Tanh", ["x"], ["t"]),
        *(node("MatMul", ["t", f"w{name}"], [name]) for name in "qkv"),
        node("Mul", ["q", "k"], ["u"]),
        node("Add", ["u", "v"], ["y"]),
    ]
    draw = np.random.default_rng(seed)
    weights = {f"w{name}": draw.standard_normal((4, 4)).astype(np.float32) for name in "qkv"}
    return build.model(nodes, [build.value("x", [2, 4])], [build.value("y", [2, 4])], weights)


def normalisation() -> onnx.ModelProto:
    """Return a layer normalisation over 8 columns as exporters take it apart."""
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["x"], ["mean"], "mean", axes=[-1]),
        node("Sub", ["x", "mean"], ["centred"], "centre"),
        node("Mul", ["centred", "centred"], ["square"], "square"),
        node("ReduceMean", ["square"], ["variance"], "variance", axes=[-1]),
        node("Add", ["variance", "epsilon"], ["positive"], "positive"),
        node("Sqrt", ["positive"], ["deviation"], "deviation"),
        node("Div", ["centred", "deviation"], ["y"], "normal"),
    ]
    ends = [build.value(name, ["rows", 8]) for name in "xy"]
    return build.model(nodes, ends[:1], ends[1:], {"epsilon": np.array(1e-5, np.float32)})
