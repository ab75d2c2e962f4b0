"""Replacements of nodes whose meaning the converter of the onnx package would change.

The old meaning is that of ONNX Runtime: if its kernels differ from the text of an old definition, as for
Resize of opset 10, models were made and tested with the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from transforms.graph import walk
from transforms.model.proto_facts import Facts, Shape, attributes_of, constant, is_made_of_shapes
from transforms.model.read_model import ModelError

LEAST = 13
"""Opset from which on the replacements of all rules are valid."""

_LARGEST = float(np.finfo(np.float32).max)
"""Bound of a Clip without an explicit one, whatever the type of its data."""

_ALLOWZERO = 14
"""First opset in which Reshape can treat 0 as a size of 0."""


@dataclass(frozen=True)
class Rule:
    """How to rewrite an operator in a raise over one of the opsets in ``steps``.

    ``rewrite`` returns nodes that compute the same in the opset of :func:`least_opset`, or None for a node
    that the converter handles correctly. It raises ModelError with a reason for a node without an
    equivalent.
    """

    steps: frozenset[int]
    rewrite: Callable[[NodeProto, Facts, int, walk.Names], list[NodeProto] | None]


def least_opset(nodes: Iterable[NodeProto]) -> int:
    """Return the first opset in which the replacements of a rule are valid."""
    return _ALLOWZERO if any("allowzero" in attributes_of(node) for node in nodes) else LEAST


def _along_the_rest(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto]:
    """Flatten all axes from ``axis`` on, as Softmax, LogSoftmax and Hardmax do before opset 13."""
    shape, axis = facts.shapes.get(node.input[0]), attributes_of(node).get("axis", 1)
    if shape is not None and axis < 0:
        axis += len(shape)
    if shape is not None and axis == len(shape) - 1:
        return [_like(node, node.input, node.output, axis=-1)]
    if shape is not None and 0 in shape:
        return [helper.make_node("Identity", node.input, node.output, node.name)]
    sizes, flat, rows = (names.derive(node.output[0], suffix) for suffix in ("shape", "flat", "rows"))
    back: dict[str, Any] = {} if _zeros_stay(shape, axis) else {"allowzero": 1}
    return [
        helper.make_node("Shape", node.input, [sizes], names.derive(sizes, "node")),
        helper.make_node("Flatten", node.input, [flat], names.derive(flat, "node"), axis=axis),
        _like(node, [flat], [rows], axis=-1),
        helper.make_node("Reshape", [rows, sizes], node.output, names.derive(rows, "reshape"), **back),
    ]


def _zeros_stay(shape: Shape | None, axis: int) -> bool:
    """Return whether Reshape copies the right size for each 0 that a shape may hold at run time.

    It copies from the flattened tensor: its first size is 0 if the first of the shape is, unless all axes
    are flattened, and its second if the second of the shape is 0 and the first axis was flattened.
    """
    if shape is None:
        return False
    free = {index for index, size in enumerate(shape) if size is None}
    return free <= ({0, 1} if axis == 1 else {0} if axis > 1 else set())


def _like(node: NodeProto, inputs: Any, outputs: Any, **attributes: Any) -> NodeProto:
    return helper.make_node(node.op_type, inputs, outputs, node.name, **attributes)


def _mask(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto] | None:
    """Output a mask of zeros, as Dropout outside of training before opset 12; later it outputs ones."""
    if len(node.output) < 2 or not node.output[1]:
        return None
    kind = facts.types.get(node.output[1], TensorProto.UNDEFINED)
    if kind == TensorProto.UNDEFINED:
        raise ModelError(f"the type of its mask '{node.output[1]}' is unknown")
    zero = helper.make_tensor("zero", kind, [1], [0])
    sizes = names.derive(node.output[1], "shape")
    shape_node, fill = names.derive(sizes, "node"), names.derive(node.output[1], "node")
    return [
        helper.make_node("Identity", node.input[:1], node.output[:1], node.name),
        helper.make_node("Shape", node.input[:1], [sizes], shape_node),
        helper.make_node("ConstantOfShape", [sizes], node.output[1:2], fill, value=zero),
    ]


def _resize(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto] | None:
    if opset >= 11 and node.op_type == "Resize":
        return _without_empty_scales(node, facts)
    attributes = attributes_of(node)
    mode = attributes.get("mode", b"nearest").decode()
    if "scales" not in attributes:
        return _resize_nodes(node, mode, facts, opset, names)
    scales = names.derive(node.output[0], "scales")
    values = np.array(attributes["scales"], np.float32)
    scaled_facts = facts.inside(helper.make_graph([], "scales", [], []))
    scaled_facts.constants[scales] = values
    moved = helper.make_node("Resize", [node.input[0], scales], node.output, node.name)
    return [constant(scales, values), *_resize_nodes(moved, mode, scaled_facts, opset, names)]


def _without_empty_scales(node: NodeProto, facts: Facts) -> list[NodeProto] | None:
    """Remove empty scales, which a Resize with sizes may have from opset 13 on.

    Shape inference sees that they are empty in their own graph, but not in a body.
    """
    values = facts.constants.get(node.input[2]) if len(node.input) > 3 else None
    if values is None or values.size:
        return None
    bare = NodeProto()
    bare.CopyFrom(node)
    bare.input[2] = ""
    return [bare]


def _resize_nodes(node: NodeProto, mode: str, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto]:
    """Return the nodes that replace one that reads data and scales; ModelError if there are none.

    ONNX Runtime puts pixel i of a Resize of opset 10, and of an Upsample, at i / scale. For the nearest
    pixel it rounds down along growing axes and up along shrinking axes; it copies a tensor whose sizes do
    not change.
    """
    if mode not in ("nearest", "linear"):
        raise ModelError(f"its mode '{mode}' is not nearest or linear")
    x, scales = node.input[:2]
    if mode == "linear":
        return [_asymmetric(node.name, x, scales, node.output, mode="linear")]
    values = facts.value(scales, opset)
    if values is not None and (values >= 1).all():
        return [_asymmetric(node.name, x, scales, node.output, nearest_mode="floor")]
    if values is not None and (values <= 1).all():
        return [_asymmetric(node.name, x, scales, node.output, nearest_mode="ceil")]
    builder = _Parts(node, names)
    if values is not None:
        unit = np.float32(1)
        down = builder.array("down", np.minimum(values, unit))
        up = builder.array("up", np.concatenate([[np.float32(2)], np.maximum(values, unit)]))
    elif is_made_of_shapes(facts, scales):
        down, up = _split(builder, scales)
    else:
        raise ModelError(f"its scales '{scales}' are neither constant nor computed from shapes")
    return builder.resize_twice(x, down, up)


def _asymmetric(name: str, x: str, scales: str, outputs: Sequence[str], **attributes: str) -> NodeProto:
    attributes = {"mode": "nearest", **attributes, "coordinate_transformation_mode": "asymmetric"}
    return helper.make_node("Resize", [x, "", scales], outputs, name, **attributes)


def _split(parts: _Parts, scales: str) -> tuple[str, str]:
    """Return the scales up to 1, and those from 1 on, preceded by one for an extra first axis.

    The extra scale is 2 if some axes grow and others shrink.
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

        If that axis also grows, some size changes, and ONNX Runtime does not just copy the tensor.
        """
        shrunk, grown = (self._names.derive(self._node.output[0], suffix) for suffix in ("shrunk", "grown"))
        node = self._names.derive(shrunk, "node")
        self._nodes.append(_asymmetric(node, x, down, [shrunk], nearest_mode="ceil"))
        deeper = self.make("Unsqueeze", "deeper", shrunk, self.array("axis", np.array([0])))
        self._nodes.append(_asymmetric(self._node.name, deeper, up, [grown], nearest_mode="floor"))
        first = [grown, self.array("first_of_all", np.array(0))]
        gather = self._names.derive(grown, "node")
        self._nodes.append(helper.make_node("Gather", first, self._node.output, gather, axis=0))
        return self._nodes


def _groups(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> None:
    shape, groups = facts.shapes.get(node.input[0], ()), attributes_of(node).get("num_groups")
    if len(shape) < 2 or shape[1] != groups:
        raise ModelError("its scale and bias are per group, from opset 21 on per channel")


def _scan(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> None:
    raise ModelError(f"a Scan of opset {opset} has other inputs than later ones; export the model anew")


def _clip(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto] | None:
    """Pass the bounds as inputs with the type of the data: the converter would always use float32."""
    if facts.types.get(node.input[0], TensorProto.UNDEFINED) == TensorProto.FLOAT:
        return None
    bounds = {"min": -_LARGEST, "max": _LARGEST} | attributes_of(node)
    return _with_inputs(node, {key: _typed(node, bounds[key], facts) for key in ("min", "max")}, names)


def _pad(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto]:
    """Pass attributes as inputs with the type of the data: the converter would always pad in float32."""
    attributes = attributes_of(node)
    mode, value = attributes.get("mode", b"constant").decode(), attributes.get("value", 0.0)
    inputs = {"pads": np.array(attributes["pads"], np.int64)}
    if mode == "constant" and value != 0:
        inputs["value"] = _typed(node, value, facts)
    return _with_inputs(node, inputs, names, mode=mode)


def _with_inputs(
    node: NodeProto, values: dict[str, np.ndarray], names: walk.Names, **attributes: str
) -> list[NodeProto]:
    """Return constants, and the node that reads its data and these."""
    held = [constant(names.derive(node.output[0], key), value) for key, value in values.items()]
    inputs = [node.input[0], *(one.output[0] for one in held)]
    return [*held, helper.make_node(node.op_type, inputs, node.output, node.name, **attributes)]


def _typed(node: NodeProto, value: float, facts: Facts) -> np.ndarray:
    kind = facts.types.get(node.input[0], TensorProto.UNDEFINED)
    if kind == TensorProto.UNDEFINED:
        raise ModelError(f"the type of its input '{node.input[0]}' is unknown")
    with np.errstate(over="ignore"):  # float16 cannot hold the default bound of a Clip
        return np.asarray(value, helper.tensor_dtype_to_np_dtype(kind))


RULES: dict[str, Rule] = {
    "Clip": Rule(frozenset({11}), _clip),
    "Pad": Rule(frozenset({11}), _pad),
    "Dropout": Rule(frozenset({10, 12}), _mask),
    "GroupNormalization": Rule(frozenset({21}), _groups),
    "Resize": Rule(frozenset({11, 13}), _resize),
    "Scan": Rule(frozenset({9}), _scan),
    "Upsample": Rule(frozenset({9, 10}), _resize),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), Rule(frozenset({13}), _along_the_rest)),
}
