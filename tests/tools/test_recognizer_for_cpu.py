"""A recognizer of text for ``--target ort-cpu``. Oracle: the graph that ONNX Runtime makes of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from tests.helpers import build
from tools import quantize

CLASSES, HIDDEN, CHANNELS = 1100, 16, 8
"""Classes of which an int32 bias takes more than 4 KiB, from which on tables of indices are stored narrow."""


def _recognizer() -> onnx.ModelProto:
    """Return a Conv and its SiLU, columns through an LSTM, and a Gemm with a small bias for each column."""
    random = np.random.default_rng(0)

    def _weights(*shape: int) -> np.ndarray:
        fan = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        return (random.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)

    weights = {
        "kernel": _weights(CHANNELS, 1, 3, 3),
        "shift": _weights(CHANNELS, 1)[:, 0],
        "inner": _weights(1, 4 * HIDDEN, CHANNELS),
        "state": _weights(1, 4 * HIDDEN, HIDDEN),
        "height": np.array([2]),
        "rows": np.array([-1, HIDDEN]),
        "head": 3 * _weights(HIDDEN, CLASSES),
        "bias": 1e-3 * random.standard_normal(CLASSES, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "shift"], ["conv"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["conv"], ["gate"], "gate"),
        helper.make_node("Mul", ["conv", "gate"], ["silu"], "silu"),
        helper.make_node("MaxPool", ["silu"], ["pooled"], "pool", kernel_shape=[8, 1]),
        helper.make_node("Squeeze", ["pooled", "height"], ["columns"], "squeeze"),
        helper.make_node("Transpose", ["columns"], ["steps"], "turn", perm=[2, 0, 1]),
        helper.make_node("LSTM", ["steps", "inner", "state"], ["read"], "lstm", hidden_size=HIDDEN),
        helper.make_node("Reshape", ["read", "rows"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "head", "bias"], ["y"], "classes"),
    ]
    ends = build.value("x", [1, 1, 8, "width"]), build.value("y", ["steps", CLASSES])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


def test_its_wide_head_is_a_layer_of_integers(tmp_path: Path) -> None:
    """The bias stays int32 in front of the head, whose one kernel takes it."""
    source, target, data = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "data"
    build.save(_recognizer(), source)
    data.mkdir()
    for place in range(8):
        image = np.random.default_rng(place).standard_normal((1, 1, 8, 24), np.float32)
        np.save(data / f"{place}.npy", image)
    words = ["--input", source, "--output", target, "--data", data, "--target", "ort-cpu", "--fast"]
    assert quantize.main([str(word) for word in words]) == 0
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    session = ort.InferenceSession(str(target), options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert {"QLinearConv", "QGemm"} <= set(operators)
    feed = {"x": np.random.default_rng(99).standard_normal((1, 1, 8, 24), np.float32)}
    (floats,), (found,) = ort.InferenceSession(str(source)).run(None, feed), session.run(None, feed)
    assert 10 * np.log10(np.sum(floats**2) / np.sum((floats - found) ** 2)) > 20
