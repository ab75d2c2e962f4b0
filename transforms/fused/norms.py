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


def split_layer_norm(parts: Parts) -> bool:
    """Take a LayerNormalization apart that a model has before opset 17."""
    x, gamma, beta = (parts.given(place) for place in range(3))
    return _normalize(parts, x, gamma, beta, _EPSILON, mean=parts.made(1), inverse=parts.made(2))


def split_rms_norm(parts: Parts) -> bool:
    """Take a SimplifiedLayerNormalization apart: x over the root of its mean square, times a gain.

    Its second output is one over that root.
    """
    return _normalize_rms(parts, parts.given(0), parts.given(1), _EPSILON, inverse=parts.made(1))


def split_skip_norm(parts: Parts) -> bool:
    """Take a SkipLayerNormalization apart: a sum, and LayerNormalization."""
    if _uses_statistics(parts):
        return False
    x = _sum(parts, (0, 1, 4))
    return _normalize(parts, x, parts.given(2), parts.given(3), _SKIP_EPSILON)


def split_skip_rms_norm(parts: Parts) -> bool:
    """Take a SkipSimplifiedLayerNormalization apart: a sum, and what a SimplifiedLayerNormalization is."""
    if _uses_statistics(parts):
        return False
    return _normalize_rms(parts, _sum(parts, (0, 1, 3)), parts.given(2), _SKIP_EPSILON)


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


def _uses_statistics(parts: Parts) -> bool:
    """Return whether anything reads the mean or the variance, which ONNX Runtime may not compute."""
    return bool(parts.made(1) or parts.made(2))


def _axes(parts: Parts) -> list[int] | None:
    """Return the axes that a norm goes over, counted from the last; None if the rank has to be known."""
    axis, rank = int(parts.attributes.get("axis", -1)), parts.rank_of(parts.given(0))
    first = axis - rank if axis >= 0 and rank is not None else axis
    return list(range(first, 0)) if first < 0 else None


def _normalize(
    parts: Parts, x: str, gamma: str, beta: str, epsilon: float, *, mean: str = NONE, inverse: str = NONE
) -> bool:
    """Add (x - mean) / sqrt(variance + epsilon), times gamma, plus beta.

    ``mean`` and ``inverse``, below opset 17: what the mean and one over the root are named.
    """
    axes, epsilon = _axes(parts), float(parts.attributes.get("epsilon", epsilon))
    if axes is None:
        return False
    if parts.known.opset >= _LAYER_NORM:
        inputs = [x, gamma, beta] if beta else [x, gamma]
        parts.add("LayerNormalization", *inputs, axis=axes[0], epsilon=epsilon)
        return parts.end()
    centred = parts.add("Sub", x, parts.reduce("ReduceMean", x, axes, to=mean))
    variance = parts.reduce("ReduceMean", parts.add("Mul", centred, centred), axes)
    deviation = parts.add("Sqrt", parts.add("Add", variance, parts.constant(epsilon, "epsilon")))
    if inverse:
        parts.add("Reciprocal", deviation, to=inverse)
    made = parts.add("Mul", parts.add("Div", centred, deviation), gamma)
    if beta:
        parts.add("Add", made, beta)
    return parts.end()


def _normalize_rms(parts: Parts, x: str, gamma: str, epsilon: float, *, inverse: str = NONE) -> bool:
    """Add x / sqrt(mean of squares + epsilon), times gamma; ``inverse``: what one over the root is named."""
    axes, epsilon = _axes(parts), float(parts.attributes.get("epsilon", epsilon))
    if axes is None:
        return False
    if parts.known.opset >= _RMS_NORM and not inverse:
        parts.add("RMSNormalization", x, gamma, axis=axes[0], epsilon=epsilon)
        return parts.end()
    squares = parts.add("Pow", x, parts.constant(2.0, "two"))
    mean = parts.reduce("ReduceMean", squares, axes)
    root = parts.add("Sqrt", parts.add("Add", mean, parts.constant(epsilon, "epsilon")))
    if inverse:
        parts.add("Reciprocal", root, to=inverse)
    parts.add("Mul", parts.add("Div", x, root), gamma)
    return parts.end()
