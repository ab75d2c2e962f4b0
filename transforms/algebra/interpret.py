"""The result of element-wise nodes as a polynomial in one tensor and its statistics.

Exporters write LayerNorm and GELU in many orders and associations. Read as polynomials in the tensor ``x``,
its mean, its mean square and ``rsqrt = 1 / sqrt(variance + epsilon)``, all of them are the same few terms:
``mean((x - mean)^2)`` and ``mean(x^2) - mean^2`` both become ``square - mean^2``, and so on.
A node of an unknown operator, or whose broadcast cannot be proven, has no polynomial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.algebra.context import ALIGNED, CONSTANT, FLOAT_BITS, REDUCED, Context, Value
from transforms.algebra.norm_terms import (
    ERF,
    ERF_ARGUMENT,
    RELU6,
    RELU6_ARGUMENT,
    TANH,
    TANH_ARGUMENT,
    X,
    inverse,
    mean,
    power,
    square_root,
    variance_form,
)
from transforms.algebra.polynomial import ONE, Monomial, Polynomial, Symbol
from transforms.graph import shapes
from transforms.graph.constants import Constants
from transforms.graph.rewire import STANDARD_DOMAINS

_MAX_TERMS = 24


def interpret(context: Context, constants: Constants, exclude: Container[gs.Node] = ()) -> dict[int, Value]:
    """Return the values of all tensors that follow from x alone, keyed by ``id(tensor)``.

    Outputs of nodes in ``exclude`` are not interpreted.
    """
    return _Reader(context, constants, exclude).read()


class Order:
    """The first outputs of the nodes of a graph, in its order when it was asked for."""

    def __init__(self, graph: gs.Graph) -> None:
        """Number them."""
        self.graph = graph
        firsts = (node.outputs[0] for node in graph.nodes if node.outputs)
        self._places = {id(tensor): (place, tensor) for place, tensor in enumerate(firsts)}

    def of(self, values: dict[int, Value]) -> list[gs.Tensor]:
        """Return those that have a value, in order."""
        return [tensor for _, tensor in sorted(self._places[key] for key in values if key in self._places)]


class _Reader:
    def __init__(self, context: Context, constants: Constants, exclude: Container[gs.Node]) -> None:
        self.context = context
        self._exclude = exclude
        self.constants = constants
        self._values = {id(context.root): Value(Polynomial.symbol(X), ALIGNED)}

    def read(self) -> dict[int, Value]:
        """Follow x through the graph, node by node, as far as the rules reach."""
        pending = deque(self.context.root.outputs)
        while pending:
            node = pending.popleft()
            if not node.outputs or id(node.outputs[0]) in self._values or node in self._exclude:
                continue
            rule = RULES.get(node.op) if node.domain in STANDARD_DOMAINS else None
            value = rule(self, node) if rule else None
            if value is not None and len(value.polynomial.terms) <= _MAX_TERMS:
                self._values[id(node.outputs[0])] = value
                pending.extend(node.outputs[0].outputs)
        return self._values

    def value(self, node: gs.Node, index: int = 0) -> Value | None:
        """Return the value of an input of the node, a constant one included."""
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
        own: list[int] = []  # the dimensions along the axes; all others are of size 1
        if values.size != 1:
            padded = (1,) * (max(map(abs, self.context.axes)) - len(shape)) + shape
            own = [padded[axis] for axis in self.context.axes]
        return Value(Polynomial.constant(values.reshape(own)), CONSTANT, len(shape))

    def _fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a constant varies along the axes only, and broadcasts to x without enlarging it."""
        known = dict(zip(self.context.axes, self.context.sizes, strict=True))
        deepest = max(map(abs, self.context.axes), default=0)
        least = deepest if self.context.rank is None else self.context.rank
        pairs = ((size, known.get(index - len(shape))) for index, size in enumerate(shape))
        return len(shape) <= least and all(size == 1 or size == expected for size, expected in pairs)

    def combine(self, left: Value, right: Value, result: Polynomial) -> Value | None:
        """Return the value of a binary operator's result, or None if its shape may differ from x's."""
        layouts = {left.layout, right.layout} - {CONSTANT}
        rank = max(left.rank, right.rank)
        if len(layouts) != 1:
            return None
        layout = layouts.pop()
        reduced = len(self.context.axes)
        least = reduced if self.context.rank is None else self.context.rank
        if layout == REDUCED and not (result.is_uniform and rank <= max(0, least - reduced)):
            return None
        return Value(result, layout)


Rule = Callable[[_Reader, gs.Node], "Value | None"]


def _binary(operation: Callable[[Polynomial, Polynomial, float], Polynomial | None]) -> Rule:
    def _rule(reader: _Reader, node: gs.Node) -> Value | None:
        left, right = reader.value(node, 0), reader.value(node, 1)
        if left is None or right is None:
            return None
        result = operation(left.polynomial, right.polynomial, reader.context.tolerance)
        return None if result is None else reader.combine(left, right, result)

    return _rule


def _quotient(left: Polynomial, right: Polynomial, tolerance: float) -> Polynomial | None:
    divisor = inverse(right, tolerance)
    return None if divisor is None else left * divisor


def _unary(operation: Callable[[Polynomial, float], Polynomial | None]) -> Rule:
    def _rule(reader: _Reader, node: gs.Node) -> Value | None:
        value = reader.value(node)
        result = None if value is None else operation(value.polynomial, reader.context.tolerance)
        return None if value is None or result is None else Value(result, value.layout)

    return _rule


def _power(reader: _Reader, node: gs.Node) -> Value | None:
    left, right = reader.value(node, 0), reader.value(node, 1)
    if left is None or right is None or right.layout != CONSTANT or not right.polynomial.is_uniform:
        return None
    result = power(left.polynomial, float(right.polynomial.get(ONE)), reader.context.tolerance)
    return None if result is None else reader.combine(left, right, result)


def _special(symbol: Symbol, argument: dict[Monomial, float]) -> Rule:
    def _operation(polynomial: Polynomial, tolerance: float) -> Polynomial | None:
        return Polynomial.symbol(symbol) if polynomial.is_close(argument, tolerance) else None

    return _unary(_operation)


def _max(reader: _Reader, node: gs.Node) -> Value | None:
    """Max of a variance and 0 changes nothing but rounding errors."""
    if len(node.inputs) != 2:
        return None
    values = [value for index in (0, 1) if (value := reader.value(node, index)) is not None]
    zeros = [value for value in values if value.layout == CONSTANT and not value.polynomial.get(ONE).any()]
    others = [value for value in values if _is_variance(value, reader)]
    return reader.combine(others[0], zeros[0], others[0].polynomial) if zeros and others else None


def _clip(reader: _Reader, node: gs.Node) -> Value | None:
    """Clip of a variance from 0 upwards, or Relu of it, changes nothing but rounding errors either; that of
    x + 3 from 0 to 6 is a quantity of its own."""
    value = reader.value(node)
    has_upper = "max" in node.attrs or (len(node.inputs) > 2 and not node.inputs[2].is_empty())
    lower = node.attrs["min"] if "min" in node.attrs else reader.scalar(node, 1)
    upper = node.attrs["max"] if "max" in node.attrs else reader.scalar(node, 2)
    if value is None:
        return None
    if (lower, upper) == (0, 6) and value.polynomial.is_close(RELU6_ARGUMENT, reader.context.tolerance):
        return Value(Polynomial.symbol(RELU6), value.layout)
    starts_at_zero = node.op == "Relu" or (lower == 0 and not has_upper)
    return value if starts_at_zero and _is_variance(value, reader) else None


def _is_variance(value: Value, reader: _Reader) -> bool:
    return variance_form(value.polynomial, reader.context.tolerance) is not None


def _cast(reader: _Reader, node: gs.Node) -> Value | None:
    """A Cast to a type at least as wide as x's is read as changing nothing."""
    to, own = node.attrs.get("to"), reader.context.element_type
    target = to if isinstance(to, int) else int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    is_wide = target == own or FLOAT_BITS.get(target, 0) > FLOAT_BITS[own]
    return reader.value(node) if is_wide else None


def _reduce(reader: _Reader, node: gs.Node) -> Value | None:
    value = reader.value(node)
    axes = shapes.reduced_axes(node, reader.context.rank, reader.constants)
    if value is None or value.layout != ALIGNED or axes != reader.context.axes:
        return None
    result = mean(value.polynomial)
    if result is None or (node.op == "ReduceSum" and not value.polynomial.has(X)):
        return None
    if node.op == "ReduceSum":
        if reader.context.count is None:
            return None
        result = result * Polynomial.constant(reader.context.count)
    return Value(result, ALIGNED if node.attrs.get("keepdims", 1) else REDUCED)


def _restore_axes(reader: _Reader, node: gs.Node) -> Value | None:
    """Unsqueeze, Reshape or Expand that gives a statistic its reduced axes back, or only broadcasts."""
    value = reader.value(node)
    if value is None or value.layout == CONSTANT:
        return None
    context, is_reduced = reader.context, value.layout == REDUCED
    fits = shapes.RESTORES[node.op](node, is_reduced, context.axes, context.shape, reader.constants)
    return Value(value.polynomial, ALIGNED) if fits else None


def _squeeze(reader: _Reader, node: gs.Node) -> Value | None:
    """Squeeze of the reduced axes of a statistic."""
    value = reader.value(node)
    axes = shapes.listed_axes(node, reader.context.rank, reader.constants)
    if value is None or value.layout != ALIGNED or value.polynomial.has(X) or not value.polynomial.is_uniform:
        return None
    return Value(value.polynomial, REDUCED) if axes == reader.context.axes else None


RULES: dict[str, Rule] = {
    "Add": _binary(lambda left, right, _: left + right),
    "Sub": _binary(lambda left, right, _: left - right),
    "Mul": _binary(lambda left, right, _: left * right),
    "Div": _binary(_quotient),
    "Neg": _unary(lambda polynomial, _: -polynomial),
    "Pow": _power,
    "Sqrt": _unary(square_root),
    "Reciprocal": _unary(inverse),
    "Erf": _special(ERF, ERF_ARGUMENT),
    "Tanh": _special(TANH, TANH_ARGUMENT),
    "Max": _max,
    "Clip": _clip,
    "Relu": _clip,
    "Identity": _unary(lambda polynomial, _: polynomial),
    "Cast": _cast,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "Unsqueeze": _restore_axes,
    "Reshape": _restore_axes,
    "Expand": _restore_axes,
    "Squeeze": _squeeze,
}
