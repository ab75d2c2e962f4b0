"""A graph in the making: nodes with names of the attack, weights by their shapes, and the declared ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper, numpy_helper

from tests.attack.graphs.names import Names
from tests.helpers.build import Shape, value

Random = np.random.Generator
End = tuple[Shape, DTypeLike]
"""Shape, with names of free sizes, and type of an input or output."""


class Draft:
    """Nodes and weights of one model; numbers of type ``dtype``."""

    def __init__(self, rng: Random, dtype: DTypeLike = np.float32, opset: int | None = None) -> None:
        """Begin an empty graph, of a random operator set unless one is given."""
        self.rng, self.dtype = rng, np.dtype(dtype)
        self.opset = opset or int(rng.choice((13, 15, 17, 18, 20, 21)))
        self.names, self._nodes, self._node_names = Names(rng), list[onnx.NodeProto](), set[str]()
        self._weights: dict[str, np.ndarray] = {}

    def op(
        self, op_type: str, inputs: Sequence[str], out: str | None = None, *, domain: str = "", **attrs: Any
    ) -> str:
        """Add a node of one output, named ``out`` or anyhow; return that name."""
        name = out or self.names.tensor()
        self.node(op_type, inputs, [name], domain=domain, **attrs)
        return name

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", **attrs: Any
    ) -> None:
        """Add a node with its outputs by name."""
        name = self.names.node(op_type, self._node_names)
        made = helper.make_node(op_type, list(inputs), list(outputs), name, domain=domain, **attrs)
        self._nodes.append(made)

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """Add normal numbers, divided by the root of how many are added up: a matrix, or windows."""
        terms = shape[0] if len(shape) == 2 else max(1, int(np.prod(shape[1:])))
        return self.constant((self.rng.standard_normal(shape) * scale / np.sqrt(terms)).astype(self.dtype))

    def floats(self, *numbers: float) -> str:
        """Add a vector of numbers of the type of the model, or a single one."""
        array = np.array(numbers, self.dtype)
        return self.constant(array if len(numbers) != 1 else array.reshape(()))

    def integers(self, *numbers: int) -> str:
        """Add a vector of integers, as of a shape."""
        return self.constant(np.array(numbers, np.int64))

    def constant(self, array: np.ndarray, name: str | None = None) -> str:
        """Add an array."""
        name = name or self.names.tensor("w")
        self._weights[name] = array
        return name

    def reduced(self, op_type: str, x: str, axis: int, **attrs: int) -> str:
        """Add a reduction along an axis, which is an input from opset 18 on, or 13 for a sum."""
        is_input = self.opset >= (13 if op_type == "ReduceSum" else 18)
        more, given = ([self.integers(axis)], {}) if is_input else ([], {"axes": [axis]})
        return self.op(op_type, [x, *more], **given, **attrs)

    def model(self, inputs: Mapping[str, End], outputs: Mapping[str, End]) -> onnx.ModelProto:
        """Return the model, which the full checker accepts."""
        graph = helper.make_graph(
            self._nodes,
            "graph",
            [value(name, *end) for name, end in inputs.items()],
            [value(name, *end) for name, end in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in self._weights.items()],
        )
        domains = {node.domain for node in self._nodes} - {""}
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(name, 1) for name in domains)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=10)
        onnx.checker.check_model(made, full_check=True)
        return made
