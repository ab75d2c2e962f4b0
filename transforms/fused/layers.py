"""Convolutions and products of matrices that ONNX Runtime writes with what follows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transforms.fused.parts import Parts
from transforms.graph.schemas import find_schema

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
    attributes = dict(parts.attributes)
    activation = attributes.pop("activation", b"").decode()
    if activation and find_schema(activation, "", parts.known.opset) is None:
        return False
    own = {key: value for key, value in attributes.items() if not key.startswith("activation_")}
    made = parts.add("Gemm", *(name for name in parts.node.input if name), **own)
    if activation:
        prefix = "activation_"
        parts.add(
            activation, made, **{k.removeprefix(prefix): attributes[k] for k in attributes.keys() - own}
        )
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
