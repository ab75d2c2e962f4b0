"""Forms of GELU of ONNX Runtime."""

from __future__ import annotations

import math

from transforms.fused.parts import Parts

_GELU = 20
"""First opset with a Gelu."""


def split_gelu(parts: Parts, *, tanh: bool = False) -> bool:
    """Take a GELU apart, with the bias before it; one node from opset 20 on."""
    x = parts.given(0)
    if parts.given(1):
        x = parts.add("Add", x, parts.given(1))
    if parts.known.opset >= _GELU:
        parts.add("Gelu", x, approximate="tanh" if tanh else "none")
        return parts.end()
    one, half = parts.constant(1.0, "one"), parts.constant(0.5, "half")
    if tanh:
        cube = parts.add("Mul", parts.add("Mul", x, x), x)
        bent = parts.add("Add", x, parts.add("Mul", cube, parts.constant(0.044715, "cubic")))
        gate = parts.add("Tanh", parts.add("Mul", bent, parts.constant(math.sqrt(2 / math.pi), "scale")))
    else:
        gate = parts.add("Erf", parts.add("Div", x, parts.constant(math.sqrt(2), "root")))
    parts.add("Mul", parts.add("Mul", x, parts.add("Add", gate, one)), half)
    return parts.end()


def split_quick_gelu(parts: Parts) -> bool:
    """Take a QuickGelu apart: x times the sigmoid of alpha x."""
    x, alpha = parts.given(0), float(parts.attributes.get("alpha", 1.702))
    parts.add("Mul", x, parts.add("Sigmoid", parts.add("Mul", x, parts.constant(alpha, "alpha"))))
    return parts.end()
