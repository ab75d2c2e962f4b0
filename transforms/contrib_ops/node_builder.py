"""Facts of a model whose fused nodes are split, and the nodes that replace one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from transforms.graph import walk
from transforms.graph.proto_graphs import each_graph, read_names
from transforms.model.proto_facts import Facts, attributes_of

NONE = ""
"""The name of an omitted input or output."""

_AXES_ARE_INPUTS: Mapping[str, int] = MappingProxyType({"ReduceSum": 13, "ReduceMean": 18})
_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
)


class ModelFacts:
    """Facts of a whole model whose nodes are split."""

    def __init__(self, model: onnx.ModelProto, opset: int, names: walk.Names) -> None:
        """Read the model; ``names`` creates unused names."""
        self.opset, self.names = opset, names
        self._read = read_names(model.graph) - {NONE}
        kinds = Counter[int]()
        for graph in each_graph(model.graph):
            values = (*graph.input, *graph.output, *graph.value_info)
            element_types = [*(value.type.tensor_type.elem_type for value in values)]
            element_types += (tensor.data_type for tensor in graph.initializer)
            kinds.update(kind for kind in element_types if kind in _FLOATS)
        self.usual_type = max(kinds, key=lambda kind: kinds[kind], default=int(onnx.TensorProto.FLOAT))

    def is_read(self, name: str) -> bool:
        """Return whether a node reads a tensor, or a graph returns it."""
        return name in self._read


class NodeBuilder:
    """The standard nodes that replace a fused one; the last of them has its output."""

    def __init__(self, node: onnx.NodeProto, graph: onnx.GraphProto, facts: Facts, model: ModelFacts) -> None:
        """Start without nodes; constants are added to ``graph``, in which ``facts`` hold."""
        self.node, self.nodes, self.facts, self.model = node, list[onnx.NodeProto](), facts, model
        self.attributes: dict[str, Any] = attributes_of(node)
        self._graph = graph

    def input(self, place: int) -> str:
        """Return the name of an input, empty if it is omitted."""
        return str(self.node.input[place]) if place < len(self.node.input) else NONE

    def rank_of(self, name: str) -> int | None:
        """Return the rank of a tensor, or None if unknown."""
        shape = self.facts.shapes.get(name)
        return None if shape is None else len(shape)

    def output(self, place: int) -> str:
        """Return the name of an output, empty if nothing reads it."""
        name = str(self.node.output[place]) if place < len(self.node.output) else NONE
        return name if self.model.is_read(name) else NONE

    def add(self, op: str, *inputs: str, to: str = NONE, **attributes: Any) -> str:
        """Add a node; return the name of its output, a new one by default."""
        base = self.node.output[0]
        name = to or self.model.names.derive(base, op.lower())
        label = self.model.names.derive(self.node.name or base, op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [name], label, **attributes))
        return name

    def reduce(self, op: str, name: str, axes: list[int], *, to: str = NONE, keepdims: int = 1) -> str:
        """Add a reduction, with its axes as an attribute or an input, depending on the opset."""
        if self.model.opset < _AXES_ARE_INPUTS[op]:
            return self.add(op, name, to=to, axes=axes, keepdims=keepdims)
        return self.add(op, name, self.integers(axes), to=to, keepdims=keepdims)

    def cast(self, name: str, kind: int, *, to: str = NONE) -> str:
        """Add a Cast to an element type; return the name of its output."""
        made = self.add("Cast", name, to=to)
        self.nodes[-1].attribute.append(helper.make_attribute("to", kind))
        return made

    def split(self, name: str, sizes: list[int]) -> list[str]:
        """Split a tensor along its last axis; return the names of the parts."""
        pieces = [self.model.names.derive(name, f"part_{number}") for number in range(len(sizes))]
        self.add("Split", name, self.integers(sizes), to=pieces[0], axis=-1)
        self.nodes[-1].output.extend(pieces[1:])
        return pieces

    def constant(self, value: float, suffix: str) -> str:
        """Add a scalar with the type of the inputs; return its name."""
        found = (self.facts.types.get(name) for name in self.node.input)
        kind = next((kind for kind in found if kind in _FLOATS), None) or self.model.usual_type
        return self._store(np.array(value, helper.tensor_dtype_to_np_dtype(kind)), suffix)

    def integers(self, values: list[int]) -> str:
        """Add a vector of int64; return its name."""
        return self._store(np.array(values, np.int64), "sizes")

    def integer(self, value: int) -> str:
        """Add an int64 scalar; return its name."""
        return self._store(np.array(value, np.int64), "size")

    def _store(self, array: np.ndarray, suffix: str) -> str:
        name = self.model.names.derive(self.node.output[0], suffix)
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def end(self) -> bool:
        """Let the last node output what the fused one did."""
        self.nodes[-1].output[0] = self.node.output[0]
        return True
