"""Products that ONNX Runtime writes with what follows them, and forms of GELU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transforms.fused.parts import Parts
from transforms.graph.schemas import find_schema

_GELU = 20
"""First opset with a Gelu."""

_PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
)
"""Activations of a FusedConv, with the attributes that its ``activation_params`` stand for."""


def split_conv(parts: Parts) -> bool:
    """Take a FusedConv apart: Conv, Add and an activation."""
    attributes = dict(parts.attributes)
    activation = attributes.pop("activation", b"").decode()
    if activation not in ("", "Clip", *_PARAMETERS):
        return False
    parameters = [float(value) for value in attributes.pop("activation_params", ())]
    inputs = [parts.given(place) for place in range(3)]
    made = parts.add("Conv", *(inputs if inputs[2] else inputs[:2]), **attributes)
    if parts.given(3):
        made = parts.add("Add", made, parts.given(3))
    if len(parameters) != (2 if activation == "Clip" else len(_PARAMETERS.get(activation, ()))):
        return False
    if activation == "Clip":
        bounds = [parts.constant(value, end) for value, end in zip(parameters, ("min", "max"), strict=True)]
        parts.add("Clip", made, *bounds)
    elif activation:
        names: Mapping[str, Any] = dict(zip(_PARAMETERS[activation], parameters, strict=True))
        parts.add(activation, made, **names)
    return parts.end()


def split_gemm(parts: Parts) -> bool:
    """Take a FusedGemm apart: Gemm and an activation."""
    attributes, prefix = dict(parts.attributes), "activation_"
    activation = attributes.pop("activation", b"").decode()
    if activation and find_schema(activation, "", parts.known.opset) is None:
        return False
    own = {key: value for key, value in attributes.items() if not key.startswith(prefix)}
    made = parts.add("Gemm", *filter(None, parts.node.input), **own)
    if activation:
        others = attributes.keys() - own
        parts.add(activation, made, **{key.removeprefix(prefix): attributes[key] for key in others})
    return parts.end()


def split_matmul(parts: Parts) -> bool:
    """Take a FusedMatMul apart: Transpose, MatMul and Mul; not where axes of a batch move."""
    found = parts.attributes
    if found.get("transBatchA") or found.get("transBatchB"):
        return False
    inputs = []
    for place, side in enumerate("AB"):
        name = parts.given(place)
        if found.get(f"trans{side}"):
            rank = parts.rank_of(name)
            if rank is None or rank < 2:
                return False
            name = parts.add("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
        inputs.append(name)
    made = parts.add("MatMul", *inputs)
    if (alpha := float(found.get("alpha", 1.0))) != 1:
        parts.add("Mul", made, parts.constant(alpha, "alpha"))
    return parts.end()


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
