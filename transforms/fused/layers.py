"""Products that ONNX Runtime writes with what follows them, forms of GELU, and normalizations.

The latter with the sum before them, without a mean, with look-ups of embeddings. ONNX Runtime has two of them
in ONNX's own domain, which onnx.checker does not know: LayerNormalization before opset 17, and
SimplifiedLayerNormalization.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from onnx import TensorProto

from transforms.fused.parts import NONE, Parts
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


_LAYER_NORM, _RMS_NORM = 17, 23
"""First opsets with a LayerNormalization, and an RMSNormalization."""

_EPSILON, _SKIP_EPSILON = 1e-5, 1e-12
"""What epsilon is unless an attribute says it, in norms alone and in those with a sum before them."""


def split_norm(parts: Parts, *, centred: bool = True) -> bool:
    """Take a LayerNormalization apart that a model has before opset 17, or one that is not ``centred``.

    The latter, a SimplifiedLayerNormalization, is x over the root of its mean square, times a gain. The last
    output is one over the root, the one before it, where there is one, the mean.
    """
    x, gamma = parts.given(0), parts.given(1)
    if not centred:
        return _normalize(parts, x, gamma, NONE, _EPSILON, centred=False, inverse=parts.made(1))
    return _normalize(parts, x, gamma, parts.given(2), _EPSILON, mean=parts.made(1), inverse=parts.made(2))


def split_skip_norm(parts: Parts, *, centred: bool = True) -> bool:
    """Take a SkipLayerNormalization or SkipSimplifiedLayerNormalization apart: a sum and a norm.

    Not one whose mean or variance is read, which ONNX Runtime may not compute.
    """
    if parts.made(1) or parts.made(2):
        return False
    x, beta = _sum(parts, (0, 1, 4 if centred else 3)), parts.given(3) if centred else NONE
    return _normalize(parts, x, parts.given(2), beta, _SKIP_EPSILON, centred=centred)


def split_embed_norm(parts: Parts) -> bool:
    """Take an EmbedLayerNormalization apart: look-ups, their sum, LayerNormalization, and token counts."""
    tokens, segments, words, places, kinds, gamma, beta, mask, positions = (
        parts.given(place) for place in range(9)
    )
    lengths, total = parts.made(1), parts.made(2)
    if lengths and not mask:
        return False
    if lengths:
        parts.cast(parts.reduce("ReduceSum", mask, [1], keepdims=0), TensorProto.INT32, to=lengths)
    if positions:
        places = parts.add("Gather", places, positions)
    else:
        count = parts.add("Gather", parts.add("Shape", tokens), parts.integers([1]))
        places = parts.add("Slice", places, parts.integers([0]), count, parts.integers([0]))
    x = parts.add("Gather", words, tokens)
    x = parts.add("Add", x, places, to=NONE if segments else total)
    if segments:
        x = parts.add("Add", x, parts.add("Gather", kinds, segments), to=total)
    return _normalize(parts, x, gamma, beta, _SKIP_EPSILON)


def _sum(parts: Parts, places: tuple[int, ...]) -> str:
    """Add up the inputs at some places; the sum is the fused node's fourth output."""
    x, *added = (parts.given(place) for place in places if parts.given(place))
    for number, name in enumerate(added, 1):
        x = parts.add("Add", x, name, to=parts.made(3) if number == len(added) else NONE)
    return x


def _axes(parts: Parts) -> list[int] | None:
    """Return the axes that a norm goes over, counted from the last; None if the rank has to be known."""
    axis, rank = int(parts.attributes.get("axis", -1)), parts.rank_of(parts.given(0))
    first = axis - rank if axis >= 0 and rank is not None else axis
    return list(range(first, 0)) if first < 0 else None


def _normalize(
    parts: Parts,
    x: str,
    gamma: str,
    beta: str,
    epsilon: float,
    *,
    centred: bool = True,
    mean: str = NONE,
    inverse: str = NONE,
) -> bool:
    """Add (x - mean) / sqrt(variance + epsilon), times gamma, plus beta; not ``centred`` the mean is 0.

    ``mean`` and ``inverse``: what the mean and one over the root are named, which LayerNormalization, that is
    there only below opset 17, makes itself from then on, and RMSNormalization does not.
    """
    axes, epsilon = _axes(parts), float(parts.attributes.get("epsilon", epsilon))
    if axes is None:
        return False
    op, first = ("LayerNormalization", _LAYER_NORM) if centred else ("RMSNormalization", _RMS_NORM)
    if parts.known.opset >= first and (centred or not inverse):
        parts.add(op, *filter(None, (x, gamma, beta)), axis=axes[0], epsilon=epsilon)
        return parts.end()
    if centred:
        x = parts.add("Sub", x, parts.reduce("ReduceMean", x, axes, to=mean))
    variance = parts.reduce("ReduceMean", parts.add("Mul", x, x), axes)
    deviation = parts.add("Sqrt", parts.add("Add", variance, parts.constant(epsilon, "epsilon")))
    if inverse:
        parts.add("Reciprocal", deviation, to=inverse)
    made = parts.add("Mul", parts.add("Div", x, deviation), gamma)
    if beta:
        parts.add("Add", made, beta)
    return parts.end()
