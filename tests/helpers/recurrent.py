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


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Gates of recurrent operators: each has as many rows of weights as there are units."""


def gated(
    op: str, units: int = 24, width: int = 40, directions: int = 2, *, layers: int = 1, in_body: bool = False
) -> onnx.ModelProto:
    """Return ``x`` [T, 1, width] through layers of a recurrent operator ``rec0``... to ``y``.

    With ``in_body`` in both branches of an If on ``c``, which read weights ``w0``, ``r0``... from outside.
    """
    random, rows = np.random.default_rng(0), GATES[op] * units
    arrays: dict[str, np.ndarray] = {"shape": np.array([0, 0, directions * units])}
    nodes, before, size = [], "x", width
    for i in range(layers):
        arrays[f"w{i}"] = (random.standard_normal((directions, rows, size)) / 6).astype(np.float32)
        arrays[f"r{i}"] = (random.standard_normal((directions, rows, units)) / 6).astype(np.float32)
        arrays[f"b{i}"] = (random.standard_normal((directions, 2 * rows)) / 9).astype(np.float32)
        attrs = {"hidden_size": units, "direction": "bidirectional" if directions == 2 else "forward"}
        nodes.append(
            helper.make_node(
                op, [before, f"w{i}", f"r{i}", f"b{i}"], [f"m{i}"], f"rec{i}", None, None, **attrs
            )
        )
        nodes.append(helper.make_node("Transpose", [f"m{i}"], [f"t{i}"], f"turn{i}", perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{i}", "shape"], [f"h{i}"], f"flat{i}"))
        before, size = f"h{i}", directions * units
    y = build.value("y", ["T", 1, directions * units])
    nodes.append(helper.make_node("Tanh", [before], ["y"], "end"))
    x = build.value("x", ["T", 1, width])
    if not in_body:
        return build.model(nodes, [x], [y], arrays)
    bodies = {f"{side}_branch": _branch(nodes, side, y) for side in ("then", "else")}
    choice = helper.make_node("If", ["c"], ["y"], "choice", **bodies)
    return build.model([choice], [x, build.value("c", [], np.bool_)], [y], arrays)


def _branch(nodes: list[onnx.NodeProto], side: str, y: onnx.ValueInfoProto) -> onnx.GraphProto:
    """Return nodes as a body, in which what they make has names of its own."""
    made = {name for node in nodes for name in node.output}
    found = []
    for node in nodes:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        copy.name = f"{side}_{node.name}"
        for names in (copy.input, copy.output):
            names[:] = [f"{side}_{name}" if name in made else name for name in names]
        found.append(copy)
    end = onnx.ValueInfoProto.FromString(y.SerializeToString())
    end.name = f"{side}_y"
    return helper.make_graph(found, side, [], [end])


def sound(width: int = 40, steps: int = 9) -> np.ndarray:
    """Return an input of :func:`gated`, [steps, 1, width]."""
    return np.random.default_rng(1).standard_normal((steps, 1, width)).astype(np.float32)
