"""Normalizations of ONNX Runtime: with the sum before them, without a mean, with look-ups of embeddings.

ONNX Runtime has two of them in ONNX's own domain, which onnx.checker does not know: LayerNormalization before
opset 17, and SimplifiedLayerNormalization.
"""

from __future__ import annotations

from onnx import TensorProto

from transforms.fused.parts import NONE, Parts

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
