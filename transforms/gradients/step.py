"""Writing the nodes of a gradient: the interface of a differentiation rule to one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import shapes, walk
from transforms.graph.constants import Constants

Value: TypeAlias = gs.Tensor | float | Sequence[int] | np.ndarray | None
"""An input of a new node: a tensor, a float32 scalar, a list of int64, an array, or none."""

Made = TypeVar("Made")

_AXES_AS_INPUT = 18
"""First opset in which reductions other than ReduceSum take their axes as an input."""


class NoRuleError(Exception):
    """Raised by a rule that cannot differentiate a form of a node; the message gives the reason."""


class Writer:
    """Makes nodes for the end of a graph; ``nodes`` are those made so far, in topological order."""

    def __init__(self, graph: gs.Graph) -> None:
        """Start with no node; the names of the whole model are taken."""
        self.opset = graph.opset
        self.constants = Constants(graph)
        self.nodes: list[gs.Node] = []
        self._names = walk.Names(graph)
        self._known: dict[object, Any] = {}

    def write(
        self, stem: str, op: str, inputs: Sequence[Value], count: int, attrs: dict[str, Any]
    ) -> list[gs.Variable]:
        """Make a node named after ``stem`` and return its outputs; missing inputs at the end are left out."""
        tensors = [self._tensor(stem, value) for value in inputs]
        while tensors and tensors[-1].is_empty():
            tensors.pop()
        name = self._names.derive(stem, f"gradient_{op}")
        outputs = [gs.Variable(name if i == 0 else self._names.derive(name, str(i))) for i in range(count)]
        self.nodes.append(gs.Node(op, name, attrs, tensors, outputs))
        return outputs

    def once(self, key: object, make: Callable[[], Made]) -> Made:
        """Return the object made for the key before, else make it."""
        if key not in self._known:
            self._known[key] = make()
        found: Made = self._known[key]
        return found

    def _tensor(self, stem: str, value: Value) -> gs.Tensor:
        if isinstance(value, gs.Tensor):
            return value
        if value is None:
            return gs.Variable.empty()
        array = np.asarray(value, np.float32 if isinstance(value, float) else None)
        array = array.astype(np.int64) if isinstance(value, (list, tuple)) else array
        return self.once(
            (array.dtype.str, array.shape, array.tobytes()),
            lambda: gs.Constant(self._names.derive(stem, "gradient_constant"), array),
        )


@dataclass
class Step:
    """One node of the backward pass: its tensors, and the gradient of each of its outputs (None: zero).

    ``index``: that of the input whose gradient is wanted.
    A step is called like ``step("Mul", a, 0.5)`` to make a node. Every gradient has the shape of its tensor.
    """

    writer: Writer
    node: gs.Node
    gradients: list[gs.Tensor | None]
    index: int = 0

    def __call__(self, op: str, *inputs: Value, **attrs: Any) -> gs.Tensor:
        """Make a node and return its output."""
        return self.several(op, *inputs, count=1, **attrs)[0]

    def several(self, op: str, *inputs: Value, count: int, **attrs: Any) -> list[gs.Variable]:
        """Make a node with ``count`` outputs and return them."""
        stem = self.node.name or self.node.outputs[0].name
        return self.writer.write(stem, op, inputs, count, attrs)

    @property
    def x(self) -> gs.Tensor:
        """The first input of the node."""
        return self.node.inputs[0]

    @property
    def wanted(self) -> gs.Tensor:
        """The input of the node whose gradient is wanted."""
        return self.node.inputs[self.index]

    @property
    def y(self) -> gs.Tensor:
        """The first output of the node."""
        return self.node.outputs[0]

    @property
    def g(self) -> gs.Tensor:
        """The gradient of the first output."""
        return self.gradient(0)

    def gradient(self, index: int) -> gs.Tensor:
        """Return the gradient of an output, zeros of its shape if there is none."""
        found = self.gradients[index]
        return self.zeros(self.node.outputs[index]) if found is None else found

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute of the node."""
        return self.node.attrs.get(name, default)

    def input(self, index: int) -> gs.Tensor | None:
        """Return an optional input, or None if it is left out."""
        inputs = self.node.inputs
        return inputs[index] if index < len(inputs) and not inputs[index].is_empty() else None

    def integers(self, index: int) -> tuple[int, ...] | None:
        """Return the constant list of an optional input, None if left out; NoRuleError if computed."""
        tensor = self.input(index)
        if tensor is None:
            return None
        found = self.writer.constants.integers(tensor)
        if found is None:
            raise NoRuleError(f"its input '{tensor.name}' is computed")
        return found

    def sizes(self, tensor: gs.Tensor) -> shapes.Shape:
        """Return the known part of a tensor's shape; NoRuleError if its rank is unknown."""
        shape = shapes.shape_of(tensor)
        if shape is None:
            raise NoRuleError(f"the rank of '{tensor.name}' is not known")
        return shape

    def rank(self, tensor: gs.Tensor) -> int:
        """Return the rank of a tensor; NoRuleError if it is unknown."""
        return len(self.sizes(tensor))

    def fixed_sizes(self, tensor: gs.Tensor, first: int = 0) -> list[int] | None:
        """Return the sizes from an axis on, or None if one of them is not fixed."""
        shape = shapes.shape_of(tensor)
        if shape is None or not _is_fixed(shape[first:]):
            return None
        return [size for size in shape[first:] if isinstance(size, int)]

    def shape(self, tensor: gs.Tensor) -> Value:
        """Return the shape of a tensor as an int64 input of a node."""
        shape = shapes.shape_of(tensor)
        if shape is not None and _is_fixed(shape):
            return np.asarray(shape, np.int64)
        return self.writer.once(("shape", id(tensor)), lambda: self("Shape", tensor))

    def axes_of_shape(self, tensor: gs.Tensor, first: int, last: int) -> Value:
        """Return the sizes of the axes ``first`` to ``last`` as an int64 input of a node."""
        known = (shapes.shape_of(tensor) or (None,) * last)[first:last]
        if _is_fixed(known):
            return np.asarray(known, np.int64)
        return self("Slice", self.shape(tensor), [first], [last])

    def reshape(self, value: gs.Tensor, like: gs.Tensor) -> gs.Tensor:
        """Return a value in the shape of another tensor."""
        return self("Reshape", value, self.shape(like))

    def zeros(self, like: gs.Tensor) -> gs.Tensor:
        """Return zeros in the shape of a tensor."""
        return self("ConstantOfShape", self.shape(like))

    def reduce(self, op: str, value: gs.Tensor, axes: Sequence[int]) -> gs.Tensor:
        """Reduce over axes, which stay with size 1."""
        if op == "ReduceSum" or self.writer.opset >= _AXES_AS_INPUT:
            return self(op, value, list(axes), keepdims=1)
        return self(op, value, axes=list(axes), keepdims=1)

    def summed(
        self, value: gs.Tensor, like: gs.Tensor | None = None, large: shapes.Shape | None = None
    ) -> gs.Tensor:
        """Sum a value over the axes along which ``like`` (None: the wanted input) was broadcast to its shape.

        The shape is ``large``, or that of the output.
        """
        like = self.wanted if like is None else like
        small = shapes.shape_of(like)
        large = shapes.shape_of(self.y) if large is None else large
        if small is None or large is None:
            return self._summed_at_run_time(value, like)
        lead = len(large) - len(small)
        pairs = list(zip(small, large[lead:], strict=True))
        if not all(a == 1 or isinstance(a, int) or shapes.are_same(a, b) for a, b in pairs):
            return self._summed_at_run_time(value, like)
        inner = [lead + axis for axis, (a, b) in enumerate(pairs) if a == 1 and b != 1]
        if inner:
            value = self.reduce("ReduceSum", value, inner)
        return self("ReduceSum", value, list(range(lead)), keepdims=0) if lead else value

    def _summed_at_run_time(self, value: gs.Tensor, like: gs.Tensor) -> gs.Tensor:
        """Sum over every axis that is missing in the shape of ``like`` or has size 1 there."""
        shape = self("Shape", like)
        missing = self("Sub", self("Shape", self("Shape", value)), self("Shape", shape))
        ones = self("ConstantOfShape", missing, value=gs.Constant("", np.array([1], np.int64)))
        full = self("Concat", ones, shape, axis=0)
        axes = self("Reshape", self("NonZero", self("Equal", full, np.array(1, np.int64))), [-1])
        total = self("ReduceSum", value, axes, keepdims=1, noop_with_empty_axes=1)
        return self("Reshape", total, shape)


def _is_fixed(shape: Sequence[shapes.Dimension]) -> bool:
    return all(isinstance(size, int) for size in shape)
