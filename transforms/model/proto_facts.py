"""Facts about the tensors of a model before it runs: shapes, element types, and some values."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from transforms.graph.proto_graphs import bodies, sizes_of
from transforms.model.quiet_settings import compute

Shape = tuple[int | None, ...]

_MOST_NODES = 100
"""Most nodes to run for one value: sizes and scales take a handful."""

_SMALL = frozenset(
    (
        *("Add", "Cast", "Ceil", "Concat", "Constant", "Div", "Floor", "Gather", "Identity", "Mul"),
        *("Reshape", "Round", "Shape", "Slice", "Sqrt", "Squeeze", "Sub", "Unsqueeze"),
    )
)
"""Operators to run for a value: none of them enlarges data much."""


@dataclass
class Facts:
    """Tensors visible in one graph: its own and those of enclosing graphs, by name."""

    shapes: ChainMap[str, Shape] = field(default_factory=ChainMap)
    types: ChainMap[str, int] = field(default_factory=ChainMap)
    constants: ChainMap[str, np.ndarray] = field(default_factory=ChainMap)
    producers: ChainMap[str, NodeProto] = field(default_factory=ChainMap)

    def inside(self, graph: onnx.GraphProto) -> Facts:
        """Return the facts visible in a nested graph."""
        inner = Facts(*(scope.new_child() for scope in vars(self).values()))
        for value in (*graph.input, *graph.output, *graph.value_info):
            inner._add(value)
        for tensor in graph.initializer:
            inner.constants[tensor.name] = numpy_helper.to_array(tensor)
            inner.shapes[tensor.name] = tuple(tensor.dims)
            inner.types[tensor.name] = tensor.data_type
        for node in graph.node:
            inner.producers.update({name: node for name in node.output if name})
        return inner

    def _add(self, value: onnx.ValueInfoProto) -> None:
        kind = value.type.tensor_type
        self.types[value.name] = kind.elem_type
        sizes = sizes_of(kind)
        if sizes is not None:
            self.shapes[value.name] = tuple(sizes)

    def value(self, name: str, opset: int) -> np.ndarray | None:
        """Return the constant value of a tensor, computed by ONNX Runtime; None if it depends on inputs."""
        nodes: list[NodeProto] = []
        if not self._collect(name, nodes):
            return None
        if name in self.constants:
            return self.constants[name]
        end = helper.make_empty_tensor_value_info(name)
        model = helper.make_model(
            helper.make_graph(nodes, "value", [], [end]),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=8,
        )
        try:
            return np.asarray(compute(model, [name])[name])
        except Exception:  # the runtime's exceptions share no narrower class; the value stays unknown
            return None

    def _collect(self, name: str, nodes: list[NodeProto]) -> bool:
        """Collect the nodes that compute a tensor, in order; return whether it depends on no input.

        A node is queued a second time, as ready, after the producers of its inputs.
        """
        waiting: list[tuple[str, NodeProto | None]] = [(name, None)]
        seen, met = set[str](), 0
        while waiting:
            name, ready = waiting.pop()
            if ready is not None:
                nodes.append(ready)
                seen.update(ready.output)
                continue
            if not name or name in seen:
                continue
            seen.add(name)
            value = self._known(name)
            if value is not None:
                nodes.append(constant(name, value))
                continue
            node, met = self.producers.get(name), met + 1
            if (
                node is None
                or max(met, len(nodes)) > _MOST_NODES
                or node.domain
                or node.op_type not in _SMALL
            ):
                return False
            waiting += [(name, node), *((source, None) for source in reversed(node.input))]
        return True

    def _known(self, name: str) -> np.ndarray | None:
        """Return the value of a tensor that is a constant, or a shape without free sizes."""
        if name in self.constants:
            return self.constants[name]
        node = self.producers.get(name)
        if node is None or node.domain or node.op_type != "Shape" or node.attribute or not node.input:
            return None
        shape = self.shapes.get(node.input[0])
        return None if shape is None or None in shape else np.array(shape, np.int64)


def is_made_of_shapes(facts: Facts, name: str) -> bool:
    """Return whether a tensor only depends on constants and on shapes of tensors."""
    waiting, seen = [name], set[str]()
    while waiting:
        current = waiting.pop()
        if current in seen or current in facts.constants or not current:
            continue
        seen.add(current)
        node = facts.producers.get(current)
        if node is None or node.domain or bodies(node):
            return False
        if node.op_type not in ("Constant", "Shape", "Size"):
            if not node.input:
                return False  # random numbers
            waiting += node.input
    return True


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node as Python values, strings as bytes."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def constant(name: str, values: np.ndarray) -> NodeProto:
    """Return a node that outputs an array."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values))
