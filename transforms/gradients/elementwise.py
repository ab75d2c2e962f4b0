"""Gradients of operators that work element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from transforms.gradients.step import NoRuleError, Step

Derivative = Callable[[Step], gs.Tensor]

_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
_TANH_CUBE = 0.044715  # of the tanh form of GELU
_BIAS = 3.0  # HardSwish is x (x + 3) / 6 between -3 and 3


def masked(s: Step, condition: gs.Tensor) -> gs.Tensor:
    """Return the gradient of elements whose condition holds, zero for others."""
    return s("Where", condition, s.g, 0.0)


def div(s: Step) -> gs.Tensor:
    """Div: 1 / b for a, -y / b for b."""
    ratio = s("Div", s.g, s.node.inputs[1])
    return s.summed(s("Neg", s("Mul", ratio, s.y)) if s.index else ratio)


def power(s: Step) -> gs.Tensor:
    """Pow with a constant exponent."""
    exponents = s.writer.constants.values(s.node.inputs[1])
    if exponents is None:
        raise NoRuleError("its exponent is computed")
    exponents = exponents.astype(np.float32)
    if exponents.size == 1 and float(exponents.item()) == 2.0:
        slope = s("Mul", s.x, np.float32(2) * np.ones_like(exponents))
    else:
        slope = s("Mul", s("Pow", s.x, exponents - np.float32(1)), exponents)
    return s.summed(s("Mul", s.g, slope))


def extremum(s: Step) -> gs.Tensor:
    """Max and Min: to the first of the terms that equals the result."""
    chosen = s("Equal", s.wanted, s.y)
    for other in s.node.inputs[: s.index]:
        chosen = s("And", chosen, s("Not", s("Equal", other, s.y)))
    return s.summed(masked(s, chosen))


def where(s: Step) -> gs.Tensor:
    """Where, for its two branches."""
    branches = (s.g, 0.0) if s.index == 1 else (0.0, s.g)
    return s.summed(s("Where", s.x, *branches))


def clip(s: Step) -> gs.Tensor:
    """Clip: for outputs strictly between its bounds."""
    tests = [
        s(op, s.y, border) for op, i in (("Greater", 1), ("Less", 2)) if (border := s.input(i)) is not None
    ]
    if not tests:
        return s.g
    return masked(s, tests[0] if len(tests) == 1 else s("And", *tests))


def leaky(s: Step) -> gs.Tensor:
    """LeakyRelu and PRelu: the slope below zero is an attribute or the second input."""
    slope = s.input(1) if s.node.op == "PRelu" else float(s.attribute("alpha", 0.01))
    return s("Where", s("Greater", s.x, 0.0), s.g, s("Mul", s.g, slope))


def hard_sigmoid(s: Step) -> gs.Tensor:
    """HardSigmoid: a constant slope for outputs between 0 and 1."""
    inside = s("And", s("Greater", s.y, 0.0), s("Less", s.y, 1.0))
    return s("Where", inside, s("Mul", s.g, float(s.attribute("alpha", 0.2))), 0.0)


def hard_swish(s: Step) -> gs.Tensor:
    """HardSwish: (2 x + 3) / 6 between -3 and 3, 0 below and 1 above."""
    slope = s("Add", s("Mul", s.x, 1 / _BIAS), 0.5)
    upper = s("Where", s("Less", s.x, _BIAS), slope, 1.0)
    return s("Mul", s.g, s("Where", s("Greater", s.x, -_BIAS), upper, 0.0))


def _exponential(scale: float, alpha: float) -> Derivative:
    """Return the derivative of scale * (x above zero, alpha (e^x - 1) below), by means of the output."""
    return lambda s: s("Where", s("Greater", s.x, 0.0), scale, s("Add", s.y, scale * alpha))


def elu(s: Step) -> gs.Tensor:
    """Elu and Selu."""
    if s.node.op == "Elu":
        slope = _exponential(1.0, float(s.attribute("alpha", 1.0)))
    else:
        gamma, alpha = s.attribute("gamma", _SELU_GAMMA), s.attribute("alpha", _SELU_ALPHA)
        slope = _exponential(float(gamma), float(alpha))
    return s("Mul", s.g, slope(s))


def gelu(s: Step) -> gs.Tensor:
    """Gelu, exact or with tanh."""
    if s.attribute("approximate", "none") == "tanh":
        return s("Mul", s.g, _tanh_gelu_slope(s))
    below = s("Add", s("Mul", s("Erf", s("Mul", s.x, float(np.sqrt(0.5)))), 0.5), 0.5)
    density = s("Exp", s("Mul", s("Mul", s.x, s.x), -0.5))
    slope = s("Add", below, s("Mul", s("Mul", s.x, density), float(1 / np.sqrt(2 * np.pi))))
    return s("Mul", s.g, slope)


def _tanh_gelu_slope(s: Step) -> gs.Tensor:
    """(1 + t) / 2 + x (1 - t^2) u' / 2 with t = tanh(u), u = sqrt(2 / pi) (x + c x^3)."""
    factor = float(np.sqrt(2 / np.pi))
    square = s("Mul", s.x, s.x)
    inner = s("Mul", s.x, s("Add", s("Mul", square, factor * _TANH_CUBE), factor))
    t = s("Tanh", inner)
    inner_slope = s("Add", s("Mul", square, 3 * factor * _TANH_CUBE), factor)
    rest = s("Mul", s("Mul", s.x, inner_slope), s("Sub", 1.0, s("Mul", t, t)))
    return s("Mul", s("Add", s("Add", t, rest), 1.0), 0.5)


def _softsign(s: Step) -> gs.Tensor:
    width = s("Add", s("Abs", s.x), 1.0)
    return s("Reciprocal", s("Mul", width, width))


DERIVATIVES: dict[str, Derivative] = {
    "Abs": lambda s: s("Sign", s.x),
    "Cos": lambda s: s("Neg", s("Sin", s.x)),
    "Erf": lambda s: s("Mul", s("Exp", s("Neg", s("Mul", s.x, s.x))), float(2 / np.sqrt(np.pi))),
    "Exp": lambda s: s.y,
    "Log": lambda s: s("Reciprocal", s.x),
    "Reciprocal": lambda s: s("Neg", s("Mul", s.y, s.y)),
    "Sigmoid": lambda s: s("Sub", s.y, s("Mul", s.y, s.y)),
    "Sin": lambda s: s("Cos", s.x),
    "Softplus": lambda s: s("Sigmoid", s.x),
    "Softsign": _softsign,
    "Sqrt": lambda s: s("Div", 0.5, s.y),
    "Tanh": lambda s: s("Sub", 1.0, s("Mul", s.y, s.y)),
}
"""The derivative of each function of one variable, by means of its input or output."""
