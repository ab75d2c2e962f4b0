"""ONNX Runtime's products fused with their successors, forms of GELU, and normalizations.

The latter include those with a sum before them, without a mean, and with embedding lookups. ONNX Runtime has
two of them in ONNX's own domain, which onnx.checker does not know: LayerNormalization before opset 17, and
SimplifiedLayerNormalization.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from onnx import TensorProto

from transforms.contrib_ops.node_builder import NONE, NodeBuilder
from transforms.graph.schemas import find_schema

_GELU = 20
"""First opset with a Gelu."""

_PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
)
"""Activations of a FusedConv, with the attributes given by its ``activation_params``."""


def split_conv(builder: NodeBuilder) -> bool:
    """Split a FusedConv into Conv, Add and an activation."""
    attributes = dict(builder.attributes)
    activation = attributes.pop("activation", b"").decode()
    if activation not in ("", "Clip", *_PARAMETERS):
        return False
    parameters = [float(value) for value in attributes.pop("activation_params", ())]
    inputs = [builder.input(place) for place in range(3)]
    convolved = builder.add("Conv", *(inputs if inputs[2] else inputs[:2]), **attributes)
    if builder.input(3):
        convolved = builder.add("Add", convolved, builder.input(3))
    if len(parameters) != (2 if activation == "Clip" else len(_PARAMETERS.get(activation, ()))):
        return False
    if activation == "Clip":
        bounds = [builder.constant(value, end) for value, end in zip(parameters, ("min", "max"), strict=True)]
        builder.add("Clip", convolved, *bounds)
    elif activation:
        names: Mapping[str, Any] = dict(zip(_PARAMETERS[activation], parameters, strict=True))
        builder.add(activation, convolved, **names)
    return builder.end()


def split_gemm(builder: NodeBuilder) -> bool:
    """Split a FusedGemm into Gemm and an activation."""
    attributes, prefix = dict(builder.attributes), "activation_"
    activation = attributes.pop("activation", b"").decode()
    if activation and find_schema(activation, "", builder.model.opset) is None:
        return False
    gemm_attributes = {key: value for key, value in attributes.items() if not key.startswith(prefix)}
    product = builder.add("Gemm", *filter(None, builder.node.input), **gemm_attributes)
    if activation:
        parameters = attributes.keys() - gemm_attributes
        builder.add(activation, product, **{key.removeprefix(prefix): attributes[key] for key in parameters})
    return builder.end()


def split_matmul(builder: NodeBuilder) -> bool:
    """Split a FusedMatMul into Transpose, MatMul and Mul; not if batch axes are transposed."""
    attributes = builder.attributes
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        return False
    inputs = []
    for place, side in enumerate("AB"):
        name = builder.input(place)
        if attributes.get(f"trans{side}"):
            rank = builder.rank_of(name)
            if rank is None or rank < 2:
                return False
            name = builder.add("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
        inputs.append(name)
    product = builder.add("MatMul", *inputs)
    if (alpha := float(attributes.get("alpha", 1.0))) != 1:
        builder.add("Mul", product, builder.constant(alpha, "alpha"))
    return builder.end()


def split_gelu(builder: NodeBuilder, *, tanh: bool = False) -> bool:
    """Split a GELU with the bias before it; into one node from opset 20 on."""
    x = builder.input(0)
    if builder.input(1):
        x = builder.add("Add", x, builder.input(1))
    if builder.model.opset >= _GELU:
        builder.add("Gelu", x, approximate="tanh" if tanh else "none")
        return builder.end()
    unit, half = builder.constant(1.0, "one"), builder.constant(0.5, "half")
    if tanh:
        cube = builder.add("Mul", builder.add("Mul", x, x), x)
        bent = builder.add("Add", x, builder.add("Mul", cube, builder.constant(0.044715, "cubic")))
        gate = builder.add(
            "Tanh", builder.add("Mul", bent, builder.constant(math.sqrt(2 / math.pi), "scale"))
        )
    else:
        gate = builder.add("Erf", builder.add("Div", x, builder.constant(math.sqrt(2), "root")))
    builder.add("Mul", builder.add("Mul", x, builder.add("Add", gate, unit)), half)
    return builder.end()


def split_quick_gelu(builder: NodeBuilder) -> bool:
    """Split a QuickGelu: x times the sigmoid of alpha x."""
    x, alpha = builder.input(0), float(builder.attributes.get("alpha", 1.702))
    builder.add("Mul", x, builder.add("Sigmoid", builder.add("Mul", x, builder.constant(alpha, "alpha"))))
    return builder.end()


_LAYER_NORM, _RMS_NORM = 17, 23
"""First opsets with LayerNormalization and RMSNormalization."""

_EPSILON, _SKIP_EPSILON = 1e-5, 1e-12
"""Defaults of epsilon, in norms alone and in those with a sum before them."""


def split_norm(builder: NodeBuilder, *, centred: bool = True) -> bool:
    """Split a LayerNormalization from before opset 17, or one that is not ``centred``.

    The latter, a SimplifiedLayerNormalization, divides x by its root mean square and multiplies by a gain.
    The last output is the inverse of the root, the one before it, if any, the mean.
    """
    x, gamma = builder.input(0), builder.input(1)
    if not centred:
        return _normalize(builder, x, gamma, NONE, _EPSILON, centred=False, inverse=builder.output(1))
    return _normalize(
        builder, x, gamma, builder.input(2), _EPSILON, mean=builder.output(1), inverse=builder.output(2)
    )


def split_skip_norm(builder: NodeBuilder, *, centred: bool = True) -> bool:
    """Split a SkipLayerNormalization or SkipSimplifiedLayerNormalization into a sum and a norm.

    Not if its mean or variance is read, which ONNX Runtime may not compute.
    """
    if builder.output(1) or builder.output(2):
        return False
    x, beta = _sum(builder, (0, 1, 4 if centred else 3)), builder.input(3) if centred else NONE
    return _normalize(builder, x, builder.input(2), beta, _SKIP_EPSILON, centred=centred)


def split_embed_norm(builder: NodeBuilder) -> bool:
    """Split an EmbedLayerNormalization into lookups, their sum, LayerNormalization, and token counts."""
    tokens, segments, words, places, kinds, gamma, beta, mask, positions = (
        builder.input(place) for place in range(9)
    )
    lengths, total = builder.output(1), builder.output(2)
    if lengths and not mask:
        return False
    if lengths:
        builder.cast(builder.reduce("ReduceSum", mask, [1], keepdims=0), TensorProto.INT32, to=lengths)
    if positions:
        places = builder.add("Gather", places, positions)
    else:
        count = builder.add("Gather", builder.add("Shape", tokens), builder.integers([1]))
        places = builder.add("Slice", places, builder.integers([0]), count, builder.integers([0]))
    x = builder.add("Gather", words, tokens)
    x = builder.add("Add", x, places, to=NONE if segments else total)
    if segments:
        x = builder.add("Add", x, builder.add("Gather", kinds, segments), to=total)
    return _normalize(builder, x, gamma, beta, _SKIP_EPSILON)


def _sum(builder: NodeBuilder, places: tuple[int, ...]) -> str:
    """Add up the inputs at some places; the sum is the fused node's fourth output."""
    x, *added = (builder.input(place) for place in places if builder.input(place))
    for number, name in enumerate(added, 1):
        x = builder.add("Add", x, name, to=builder.output(3) if number == len(added) else NONE)
    return x


def _axes(builder: NodeBuilder) -> list[int] | None:
    """Return the axes of a norm, counted from the last; None if that takes an unknown rank."""
    axis, rank = int(builder.attributes.get("axis", -1)), builder.rank_of(builder.input(0))
    first = axis - rank if axis >= 0 and rank is not None else axis
    return list(range(first, 0)) if first < 0 else None


def _normalize(
    builder: NodeBuilder,
    x: str,
    gamma: str,
    beta: str,
    epsilon: float,
    *,
    centred: bool = True,
    mean: str = NONE,
    inverse: str = NONE,
) -> bool:
    """Add (x - mean) / sqrt(variance + epsilon), times gamma, plus beta; if not ``centred``, the mean is 0.

    ``mean`` and ``inverse``: names for the mean and for the inverse of the root. Below opset 17 nodes
    compute them, from then on LayerNormalization does; RMSNormalization does not.
    """
    axes, epsilon = _axes(builder), float(builder.attributes.get("epsilon", epsilon))
    if axes is None:
        return False
    op, first = ("LayerNormalization", _LAYER_NORM) if centred else ("RMSNormalization", _RMS_NORM)
    if builder.model.opset >= first and (centred or not inverse):
        builder.add(op, *filter(None, (x, gamma, beta)), axis=axes[0], epsilon=epsilon)
        return builder.end()
    if centred:
        x = builder.add("Sub", x, builder.reduce("ReduceMean", x, axes, to=mean))
    variance = builder.reduce("ReduceMean", builder.add("Mul", x, x), axes)
    deviation = builder.add("Sqrt", builder.add("Add", variance, builder.constant(epsilon, "epsilon")))
    if inverse:
        builder.add("Reciprocal", deviation, to=inverse)
    normalized = builder.add("Mul", builder.add("Div", x, deviation), gamma)
    if beta:
        builder.add("Add", normalized, beta)
    return builder.end()
