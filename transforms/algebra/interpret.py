"""Interpret the results of element-wise nodes as polynomials in one tensor and its statistics.

Exporters write LayerNorm and GELU in many orders and associations. Read as polynomials in the tensor ``x``,
its mean, its mean square and ``rsqrt = 1 / sqrt(variance + epsilon)``, all of them are the same few terms:
``mean((x - mean)^2)`` and ``mean(x^2) - mean^2`` both become ``square - mean^2``, and so on.
A node with an unknown operator, or whose broadcast cannot be proven, has no polynomial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.algebra.polynomial import (
    ERF,
    ERF_ARGUMENT,
    RELU6,
    RELU6_ARGUMENT,
    TANH,
    TANH_ARGUMENT,
    Monomial,
    Polynomial,
    Symbol,
    X,
    greater,
    inverse,
    mean,
    monomial,
    power,
    quotient,
    square_root,
    variance_form,
)
from transforms.graph import shapes
from transforms.graph.constants import Constants
from transforms.graph.dtypes import element_type
from transforms.graph.rewire import onnx_op
from transforms.graph.shapes import Shape

ALIGNED = "aligned"  # the rank of x, with each size 1 or x's
REDUCED = "reduced"  # a statistic of x without its reduced axes
CONSTANT = "constant"

_MAX_TERMS = 24
_FLOAT_BITS: dict[int, int] = {
    onnx.TensorProto.FLOAT16: 16,
    onnx.TensorProto.BFLOAT16: 16,
    onnx.TensorProto.FLOAT: 32,
    onnx.TensorProto.DOUBLE: 64,
}
_TOLERANCES: dict[int, float] = {onnx.TensorProto.FLOAT16: 2.0**-10, onnx.TensorProto.BFLOAT16: 2.0**-7}


@dataclass(frozen=True)
class Value:
    """The polynomial of a tensor, and the relation of its shape to x's; ``rank`` is that of a constant."""

    polynomial: Polynomial
    layout: str
    rank: int = 0


@dataclass(frozen=True)
class Context:
    """The tensor x in which others are expressed, of a floating type, and the axes of its statistics.

    ``axes`` count from the end (-1 is the last) and ascend, ``sizes`` are their sizes, or None if unknown.
    """

    root: gs.Tensor
    element_type: int
    shape: Shape | None
    axes: tuple[int, ...]
    sizes: tuple[int | None, ...]

    @property
    def rank(self) -> int | None:
        """The number of dimensions of x, or None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def count(self) -> int | None:
        """The number of elements in a statistic, or None if unknown."""
        sizes = [size for size in self.sizes if size is not None]
        return prod(sizes) if len(sizes) == len(self.axes) else None

    @property
    def tolerance(self) -> float:
        """The relative rounding of a constant in x's type, at least 1e-6."""
        return _TOLERANCES.get(self.element_type, 1e-6)


def make_context(root: gs.Tensor, axes: tuple[int, ...] = ()) -> Context | None:
    """Return the context of a tensor and of axes counted from the end, None unless it holds floats."""
    element = element_type(root)
    if element not in _FLOAT_BITS:
        return None
    sizes = tuple(shapes.size(root, axis) for axis in axes)
    return Context(root, element, shapes.shape_of(root), axes, sizes)


def interpret(context: Context, constants: Constants, exclude: Container[gs.Node] = ()) -> dict[int, Value]:
    """Return the values of all tensors that depend on x alone, keyed by ``id(tensor)``.

    Outputs of nodes in ``exclude`` are not interpreted.
    """
    return _Reader(context, constants, exclude).read()


class _Reader:
    def __init__(self, context: Context, constants: Constants, exclude: Container[gs.Node]) -> None:
        self.context = context
        self._exclude = exclude
        self.constants = constants
        self._values = {id(context.root): Value(Polynomial.symbol(X), ALIGNED)}

    def read(self) -> dict[int, Value]:
        """Follow x through the graph, node by node, as far as the rules apply."""
        pending = deque(self.context.root.outputs)
        while pending:
            node = pending.popleft()
            if not node.outputs or id(node.outputs[0]) in self._values or node in self._exclude:
                continue
            rule = RULES.get(onnx_op(node))
            value = rule(self, node) if rule else None
            if value is not None and len(value.polynomial.terms) <= _MAX_TERMS:
                self._values[id(node.outputs[0])] = value
                pending.extend(node.outputs[0].outputs)
        return self._values

    def value(self, node: gs.Node, index: int = 0) -> Value | None:
        """Return the value of an input of the node, also of a constant one."""
        tensor = node.inputs[index]
        return self._values.get(id(tensor)) or self._constant(tensor)

    def scalar(self, node: gs.Node, index: int) -> float | None:
        """Return the value of a constant scalar input of the node, or None."""
        return self.constants.scalar(node.inputs[index]) if index < len(node.inputs) else None

    def _constant(self, tensor: gs.Tensor) -> Value | None:
        shape = self.constants.shape(tensor)
        if shape is None or not self._fits(shape):
            return None
        values = np.asarray(self.constants.values(tensor)).astype(np.float64)
        if not np.isfinite(values).all():
            return None
        dimensions: list[int] = []  # the dimensions along the axes; all others are of size 1
        if values.size != 1:
            padded = (1,) * (max(map(abs, self.context.axes)) - len(shape)) + shape
            dimensions = [padded[axis] for axis in self.context.axes]
        return Value(Polynomial.constant(values.reshape(dimensions)), CONSTANT, len(shape))

    def _fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a constant varies only along the axes, and broadcasts to x without enlarging it."""
        size_of = dict(zip(self.context.axes, self.context.sizes, strict=True))
        deepest = max(map(abs, self.context.axes), default=0)
        least = deepest if self.context.rank is None else self.context.rank
        pairs = ((size, size_of.get(index - len(shape))) for index, size in enumerate(shape))
        return len(shape) <= least and all(size == 1 or size == expected for size, expected in pairs)

    def combine(self, values: Sequence[Value], result: Polynomial) -> Value | None:
        """Return the value of an operator's result, or None if its shape may differ from x's."""
        layouts = {value.layout for value in values} - {CONSTANT}
        if len(layouts) != 1:
            return None
        layout, reduced = layouts.pop(), len(self.context.axes)
        free_axes = 0 if self.context.rank is None else max(0, self.context.rank - reduced)
        fits = result.is_uniform and all(value.rank <= free_axes for value in values)
        return Value(result, layout) if layout != REDUCED or fits else None


Rule = Callable[[_Reader, gs.Node], "Value | None"]


def _pointwise(operation: Callable[..., Polynomial | None], operands: int = 1) -> Rule:
    """Return the rule of a function of polynomials and the tolerance of their constants."""

    def _rule(reader: _Reader, node: gs.Node) -> Value | None:
        operand_values = [reader.value(node, index) for index in range(len(node.inputs))]
        values = [value for value in operand_values if value is not None]
        if not len(values) == len(operand_values) == operands:
            return None
        result = operation(*(value.polynomial for value in values), reader.context.tolerance)
        return None if result is None else reader.combine(values, result)

    return _rule


def _special(symbol: Symbol, argument: Mapping[Monomial, float]) -> Rule:
    def _operation(polynomial: Polynomial, tolerance: float) -> Polynomial | None:
        return Polynomial.symbol(symbol) if polynomial.is_close(argument, tolerance) else None

    return _pointwise(_operation)


def _clip(reader: _Reader, node: gs.Node) -> Value | None:
    """Return the value of a Clip or Relu.

    Clipping a variance at 0 only affects rounding errors; clipping x + 3 from 0 to 6 is a quantity of its
    own.
    """
    value, tolerance = reader.value(node), reader.context.tolerance
    has_upper = "max" in node.attrs or (len(node.inputs) > 2 and not node.inputs[2].is_empty())
    lower = node.attrs["min"] if "min" in node.attrs else reader.scalar(node, 1)
    upper = node.attrs["max"] if "max" in node.attrs else reader.scalar(node, 2)
    if value is None:
        return None
    if (lower, upper) == (0, 6) and value.polynomial.is_close(RELU6_ARGUMENT, tolerance):
        return Value(Polynomial.symbol(RELU6), value.layout)
    starts_at_zero = node.op == "Relu" or (lower == 0 and not has_upper)
    return value if starts_at_zero and variance_form(value.polynomial, tolerance) else None


def _hard_sigmoid(reader: _Reader, node: gs.Node) -> Value | None:
    """Return the value of a HardSigmoid as in HardSwish: a sixth of min(max(x + 3, 0), 6)."""
    value, sixth = reader.value(node), Polynomial.constant(1 / 6)
    is_hardswish = abs(node.attrs.get("alpha", 0.2) - 1 / 6) < 1e-7 and node.attrs.get("beta", 0.5) == 0.5
    if value is None or not is_hardswish or not value.polynomial.is_close({monomial(x=1): 1.0}, 0):
        return None
    return Value(Polynomial.symbol(RELU6) * sixth, value.layout)


def _cast(reader: _Reader, node: gs.Node) -> Value | None:
    """Return the value of a Cast to a type at least as wide as x's, which counts as an identity."""
    to, context_type = node.attrs.get("to"), reader.context.element_type
    target = to if isinstance(to, int) else int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    is_wide = target == context_type or _FLOAT_BITS.get(target, 0) > _FLOAT_BITS[context_type]
    return reader.value(node) if is_wide else None


def _reduce(reader: _Reader, node: gs.Node) -> Value | None:
    value, factor = reader.value(node), reader.context.count if node.op == "ReduceSum" else 1
    axes = shapes.reduced_axes(node, reader.context.rank, reader.constants)
    if value is None or value.layout != ALIGNED or axes != reader.context.axes or factor is None:
        return None
    result = mean(value.polynomial)
    if result is None or (node.op == "ReduceSum" and not value.polynomial.has(X)):
        return None
    layout = ALIGNED if node.attrs.get("keepdims", 1) else REDUCED
    return Value(result * Polynomial.constant(factor), layout)


def _restore_axes(reader: _Reader, node: gs.Node) -> Value | None:
    """Return the value of an Unsqueeze, Reshape or Expand that restores reduced axes, or only broadcasts."""
    value, context = reader.value(node), reader.context
    if value is None or value.layout == CONSTANT:
        return None
    fits = shapes.restores(node, value.layout == REDUCED, context.axes, context.shape, reader.constants)
    return Value(value.polynomial, ALIGNED) if fits else None


def _squeeze(reader: _Reader, node: gs.Node) -> Value | None:
    """Return the value of a Squeeze of the reduced axes of a statistic."""
    value = reader.value(node)
    axes = shapes.listed_axes(node, reader.context.rank, reader.constants)
    if value is None or value.layout != ALIGNED or value.polynomial.has(X) or not value.polynomial.is_uniform:
        return None
    return Value(value.polynomial, REDUCED) if axes == reader.context.axes else None


RULES: dict[str, Rule] = {
    "Add": _pointwise(lambda left, right, _: left + right, 2),
    "Sub": _pointwise(lambda left, right, _: left - right, 2),
    "Mul": _pointwise(lambda left, right, _: left * right, 2),
    "Div": _pointwise(quotient, 2),
    "Pow": _pointwise(power, 2),
    "Max": _pointwise(greater, 2),
    "Neg": _pointwise(lambda polynomial, _: -polynomial),
    "Sqrt": _pointwise(square_root),
    "Reciprocal": _pointwise(inverse),
    "Identity": _pointwise(lambda polynomial, _: polynomial),
    "Erf": _special(ERF, ERF_ARGUMENT),
    "Tanh": _special(TANH, TANH_ARGUMENT),
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "Relu": _clip,
    "Cast": _cast,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "Unsqueeze": _restore_axes,
    "Reshape": _restore_axes,
    "Expand": _restore_axes,
    "Squeeze": _squeeze,
}
