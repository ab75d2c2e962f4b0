"""Small models for the tests of fine-tuning: float, quantized, and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from tests.helpers import build
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.prepare import prepare_for
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

PRESETS = (
    "A8W8",
    "XINT8",
    "U8S8",
    "A16W8",
    "W4A8",
    "BF16",
    "FP16",
    "BFP16",
    "MX6",
    "MX9",
    "MXINT8",
    "MXFP8E4M3",
    "MXFP4E2M1",
)


def conv_net(seed: int = 0) -> onnx.ModelProto:
    """Return x [n, 3, 8, 8] through Conv, depthwise Conv, ConvTranspose and Gemm, some without bias, to y."""
    random = np.random.default_rng(seed)

    def numbers(*shape: int) -> np.ndarray:
        fan = max(1, int(np.prod(shape[1:])))
        return (random.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)

    weights = {
        "w1": numbers(8, 3, 3, 3),
        "b1": numbers(8),
        "w2": numbers(8, 1, 3, 3),
        "w3": numbers(8, 6, 2, 2),
        "b3": numbers(6),
        "w4": numbers(5, 6),
        "b4": numbers(5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "depthwise", group=8, strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("ConvTranspose", ["r2", "w3", "b3"], ["c3"], "transposed", strides=[2, 2]),
        helper.make_node("Relu", ["c3"], ["r3"], "relu3"),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["y"], "dense", transB=1),
    ]
    ends = build.value("x", ["n", 3, 8, 8]), build.value("y", ["n", 5])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


def matmul_net(seed: int = 0) -> onnx.ModelProto:
    """Return x [n, 7, 16] through MatMul and Add, Relu, and a MatMul without bias, to y."""
    random = np.random.default_rng(seed)
    weights = {
        "w1": (random.standard_normal((16, 12)) / 4).astype(np.float32),
        "b1": random.standard_normal(12).astype(np.float32),
        "w2": (random.standard_normal((12, 4)) / 3).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "first"),
        helper.make_node("Add", ["b1", "m1"], ["a1"], "add"),
        helper.make_node("Relu", ["a1"], ["r1"], "relu"),
        helper.make_node("MatMul", ["r1", "w2"], ["y"], "second"),
    ]
    ends = build.value("x", ["n", 7, 16]), build.value("y", ["n", 7, 4])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


def two_products(seed: int = 0) -> onnx.ModelProto:
    """Return x [n, 7, 16] through a MatMul each to y and to z."""
    random = np.random.default_rng(seed)
    weights = {name: (random.standard_normal((16, 8)) / 4).astype(np.float32) for name in ("w1", "w2")}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["y"], "first"),
        helper.make_node("MatMul", ["x", "w2"], ["z"], "second"),
    ]
    ends = [build.value("x", ["n", 7, 16]), *(build.value(name, ["n", 7, 8]) for name in "yz")]
    return build.model(nodes, ends[:1], ends[1:], weights)


def samples(model: onnx.ModelProto, count: int = 20, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Return samples with correlated channels, as real data have."""
    random = np.random.default_rng(seed)
    dims = [d.dim_value or 1 for d in model.graph.input[0].type.tensor_type.shape.dim]
    channels = 1 if len(dims) == 4 else len(dims) - 1
    mixing = random.standard_normal((dims[channels], dims[channels]))
    found = []
    for _ in range(count):
        raw = np.moveaxis(random.standard_normal(dims), channels, -1) @ mixing + 0.5
        found.append({"x": np.ascontiguousarray(np.moveaxis(raw, -1, channels)).astype(np.float32)})
    return found


def pair(
    model: onnx.ModelProto, name: str, feeds: list[dict[str, np.ndarray]], **changes: Any
) -> tuple[gs.Graph, gs.Graph]:
    """Return the float graph in the form that a preset quantizes, and what it is quantized to."""
    scheme = preset(name).by_rule().with_(correct_biases=False).with_(**changes)
    float_graph, quantized = graph_proto.import_model(model), graph_proto.import_model(model)
    prepare_for(float_graph, scheme)
    quantize_graph(quantized, scheme, CalibrationData(feeds) if feeds else None)
    return float_graph, quantized
