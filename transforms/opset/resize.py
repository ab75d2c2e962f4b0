"""Resize of opset 10 and Upsample, expressed as Resize since opset 13.

For the old ones ONNX Runtime puts pixel i at i / scale. For the nearest pixel it rounds that down along axes
that grow and up along axes that shrink; it copies a tensor that keeps all of its sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from transforms.graph import walk
from transforms.model.proto_facts import Facts, constant, is_made_of_shapes
from transforms.model.read_model import ModelError


def resize_nodes(node: NodeProto, mode: str, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto]:
    """Return the nodes that replace one that reads data and scales; ModelError if there are none."""
    if mode not in ("nearest", "linear"):
        raise ModelError(f"its mode '{mode}' is not nearest or linear")
    x, scales = node.input[:2]
    if mode == "linear":
        return [_resize(node.name, x, scales, node.output, mode="linear")]
    values = facts.value(scales, opset)
    if values is not None and (values >= 1).all():
        return [_resize(node.name, x, scales, node.output, nearest_mode="floor")]
    if values is not None and (values <= 1).all():
        return [_resize(node.name, x, scales, node.output, nearest_mode="ceil")]
    parts = _Parts(node, names)
    if values is not None:
        one = np.float32(1)
        down = parts.array("down", np.minimum(values, one))
        up = parts.array("up", np.concatenate([[np.float32(2)], np.maximum(values, one)]))
    elif is_made_of_shapes(facts, scales):
        down, up = _split(parts, scales)
    else:
        raise ModelError(f"its scales '{scales}' are neither constant nor computed from shapes")
    return parts.resize_twice(x, down, up)


def _resize(name: str, x: str, scales: str, outputs: Sequence[str], **attributes: str) -> NodeProto:
    attributes = {"mode": "nearest", **attributes, "coordinate_transformation_mode": "asymmetric"}
    return helper.make_node("Resize", [x, "", scales], outputs, name, **attributes)


def _split(parts: _Parts, scales: str) -> tuple[str, str]:
    """Return the scales up to 1, and those from 1 on, preceded by one for an extra first axis.

    That one is 2 if some axes grow and others shrink.
    """
    one, two = parts.array("one", np.ones(1, np.float32)), parts.array("two", np.full(1, 2, np.float32))
    down, up = parts.make("Min", "down", scales, one), parts.make("Max", "up", scales, one)
    least, most = parts.make("ReduceMin", "least", scales), parts.make("ReduceMax", "most", scales)
    shrinks, grows = parts.make("Less", "shrinks", least, one), parts.make("Greater", "grows", most, one)
    first = parts.make("Where", "first", parts.make("And", "mixed", shrinks, grows), two, one)
    return down, parts.make("Concat", "scales", first, up, axis=0)


class _Parts:
    """The nodes that replace one node, with outputs named after its output."""

    def __init__(self, node: NodeProto, names: walk.Names) -> None:
        self._node, self._names = node, names
        self._nodes: list[NodeProto] = []

    def array(self, what: str, values: np.ndarray) -> str:
        """Add a constant; return its name."""
        name = self._names.derive(self._node.output[0], what)
        self._nodes.append(constant(name, values))
        return name

    def make(self, op: str, what: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = self._names.derive(self._node.output[0], what)
        name = self._names.derive(output, "node")
        self._nodes.append(helper.make_node(op, inputs, [output], name, **attributes))
        return output

    def resize_twice(self, x: str, down: str, up: str) -> list[NodeProto]:
        """Shrink, then grow with an extra first axis, removed afterwards.

        If that axis grows, too, not all sizes are kept, and ONNX Runtime does not just copy the tensor.
        """
        shrunk, grown = (self._names.derive(self._node.output[0], what) for what in ("shrunk", "grown"))
        node = self._names.derive(shrunk, "node")
        self._nodes.append(_resize(node, x, down, [shrunk], nearest_mode="ceil"))
        deeper = self.make("Unsqueeze", "deeper", shrunk, self.array("axis", np.array([0])))
        self._nodes.append(_resize(self._node.name, deeper, up, [grown], nearest_mode="floor"))
        first = [grown, self.array("first_of_all", np.array(0))]
        gather = self._names.derive(grown, "node")
        self._nodes.append(helper.make_node("Gather", first, self._node.output, gather, axis=0))
        return self._nodes
