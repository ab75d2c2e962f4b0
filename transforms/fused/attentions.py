"""Attentions of ONNX Runtime that read no earlier keys and values: products, a mask, Softmax.

Their meaning is that of ``docs/ContribOperators.md`` of ONNX Runtime: softmax(Q K^T * scale + mask) V for
each head (Vaswani et al., "Attention Is All You Need", 2017, equation 1).
"""

from __future__ import annotations

import math

from onnx import TensorProto

from transforms.fused.parts import NONE, Parts

_MASKED = -10000.0
"""What is added to the scores of masked tokens unless an attribute says it."""


def split_attention(parts: Parts) -> bool:
    """Take an Attention apart, with the product that makes queries, keys and values.

    Not one that looks at earlier tokens alone, reads or makes past keys, or turns by positions.
    """
    x, weight, bias, mask, past, extra = (parts.given(place) for place in range(6))
    sizes, width = parts.attributes.get("qkv_hidden_sizes"), (parts.facts.shapes.get(weight) or [None])[-1]
    if past or parts.made(1) or width is None:
        return False
    if parts.attributes.get("do_rotary") or parts.attributes.get("unidirectional"):
        return False
    added = _mask(parts, mask, x)
    if added is None:
        return False
    made = parts.add("MatMul", x, weight)
    if bias:
        made = parts.add("Add", made, bias)
    sizes = [int(size) for size in sizes] if sizes else [width // 3] * 3
    return _attend(parts, parts.split(made, sizes), sizes, (added, extra))


def split_multi_head_attention(parts: Parts) -> bool:
    """Take a MultiHeadAttention apart whose queries, keys and values are [batch, tokens, hidden].

    Not one that looks at earlier tokens alone, or reads or makes past keys.
    """
    names = [parts.given(place) for place in range(3)]
    bias, mask, extra = (parts.given(place) for place in range(3, 6))
    shapes = [parts.facts.shapes.get(name, ()) for name in names]
    sizes = [shape[-1] for shape in shapes if len(shape) == 3 and shape[-1] is not None]
    if len(sizes) < 3 or parts.attributes.get("unidirectional"):
        return False
    if any(parts.given(place) for place in range(6, 10)) or any(parts.made(place) for place in range(1, 4)):
        return False
    added = _mask(parts, mask, names[1])
    if added is None:
        return False
    if bias:
        pieces = parts.split(bias, sizes)
        names = [parts.add("Add", name, piece) for name, piece in zip(names, pieces, strict=True)]
    return _attend(parts, names, sizes, (added, extra))


def _attend(parts: Parts, names: list[str], sizes: list[int], added: tuple[str, str]) -> bool:
    """Add the attention of queries, keys and values [batch, tokens, hidden], with what is added to scores."""
    heads = int(parts.attributes["num_heads"])
    shapes = [parts.integers([0, 0, heads, size // heads]) for size in sizes]
    turns = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    query, key, value = (
        parts.add("Transpose", parts.add("Reshape", name, shape), perm=turn)
        for name, shape, turn in zip(names, shapes, turns, strict=True)
    )
    scale = float(parts.attributes.get("scale", 0.0)) or 1 / math.sqrt(sizes[0] // heads)
    scores = parts.add("Mul", parts.add("MatMul", query, key), parts.constant(scale, "scale"))
    for name in filter(None, added):
        scores = parts.add("Add", scores, name)
    mixed = parts.add("MatMul", parts.add("Softmax", scores, axis=-1), value)
    parts.add("Reshape", parts.add("Transpose", mixed, perm=[0, 2, 1, 3]), parts.integers([0, 0, sizes[2]]))
    return parts.end()


def _counts_tokens(parts: Parts, mask: str) -> bool:
    """Return whether a vector is the sum of a mask over its tokens, or of the node that makes it so."""
    maker = parts.facts.producers.get(mask)
    while maker is not None and maker.op_type == "Cast":
        maker = parts.facts.producers.get(maker.input[0])
    return maker is not None and maker.op_type in ("ReduceSum", "EmbedLayerNormalization")


def _mask(parts: Parts, mask: str, keys: str) -> str | None:
    """Add what a mask adds to the scores; return its name, empty without a mask, None for other masks.

    Masks are [batch, tokens] or [batch, tokens, tokens], 0 for what is not looked at, or [batch], the numbers
    of tokens that are, which a sum made: other vectors may hold two or three numbers for each sample.
    """
    if not mask:
        return NONE
    rank = parts.rank_of(mask)
    if rank == 1 and _counts_tokens(parts, mask):
        count = parts.add("Gather", parts.add("Shape", keys), parts.integer(1))
        places = parts.add("Range", parts.integer(0), count, parts.integer(1))
        counts = parts.cast(parts.add("Unsqueeze", mask, parts.integers([1])), TensorProto.INT64)
        mask, rank = parts.add("Less", places, counts), 2
    elif rank in (2, 3):
        mask = parts.cast(mask, TensorProto.BOOL)
    else:
        return None
    mask = parts.add("Unsqueeze", mask, parts.integers([1, 2] if rank == 2 else [1]))
    masked = float(parts.attributes.get("mask_filter_value", _MASKED))
    return parts.add("Where", mask, parts.constant(0.0, "kept"), parts.constant(masked, "masked"))
