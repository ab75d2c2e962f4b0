"""A recurrent network with its state as an input and an output."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.helpers import build

Stream = list[dict[str, np.ndarray]]


def weight(width: int = 8) -> np.ndarray:
    """Return the weight of the product, [width, width]."""
    random = np.random.default_rng(0)
    return (random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)


def leaky(
    keep: float = 0.9, shift: float = 0.0, state: str = "h", back: str = "h_out", width: int = 8
) -> onnx.ModelProto:
    """Return ``back`` = ``keep`` h + x w + ``shift`` and y = 2 ``back``, of x and ``state`` [1, width]."""
    weights = {
        "w": weight(width),
        "keep": np.full((1, width), keep, np.float32),
        "shift": np.full((1, width), shift, np.float32),
        "two": np.array(2, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["new"], "product"),
        helper.make_node("Mul", [state, "keep"], ["kept"], "decay"),
        helper.make_node("Add", ["kept", "new"], ["both"], "add"),
        helper.make_node("Add", ["both", "shift"], [back], "move"),
        helper.make_node("Mul", [back, "two"], ["y"], "out"),
    ]
    inputs, outputs = (
        [build.value(name, [1, width]) for name in pair] for pair in (("x", state), ("y", back))
    )
    return build.model(nodes, inputs, outputs, weights)


def stream(steps: int = 24, state: str = "h", keep: float = 0.9, width: int = 8) -> Stream:
    """Return samples in their order, each with the state of the float model."""
    random = np.random.default_rng(1)
    h, found = np.zeros((1, width), np.float32), []
    for x in random.standard_normal((steps, 1, width)).astype(np.float32):
        found.append({"x": x, state: h})
        h = keep * h + x @ weight(width)
    return found[4:]
