"""Attentions of ONNX Runtime without past keys and values: products, a mask, Softmax.

Their meaning is given in ``docs/ContribOperators.md`` of ONNX Runtime: softmax(Q K^T * scale + mask) V for
each head (Vaswani et al., "Attention Is All You Need", 2017, equation 1).
"""

from __future__ import annotations

import math

from onnx import TensorProto

from transforms.contrib_ops.node_builder import NONE, NodeBuilder

_MASKED = -10000.0
"""Added to the scores of masked tokens unless an attribute sets another value."""


def split_attention(builder: NodeBuilder) -> bool:
    """Split an Attention, including the product that computes queries, keys and values.

    Not if it is causal, reads or writes past keys, or applies rotary embeddings.
    """
    x, weight, bias, mask, past, extra = (builder.input(place) for place in range(6))
    sizes = builder.attributes.get("qkv_hidden_sizes")
    width = (builder.facts.shapes.get(weight) or [None])[-1]
    if past or builder.output(1) or width is None:
        return False
    if builder.attributes.get("do_rotary") or builder.attributes.get("unidirectional"):
        return False
    added = _mask(builder, mask, x)
    if added is None:
        return False
    projected = builder.add("MatMul", x, weight)
    if bias:
        projected = builder.add("Add", projected, bias)
    sizes = [int(size) for size in sizes] if sizes else [width // 3] * 3
    return _attend(builder, builder.split(projected, sizes), sizes, (added, extra))


def split_multi_head_attention(builder: NodeBuilder) -> bool:
    """Split a MultiHeadAttention whose queries, keys and values are [batch, tokens, hidden].

    Not if it is causal, or reads or writes past keys.
    """
    names = [builder.input(place) for place in range(3)]
    bias, mask, extra = (builder.input(place) for place in range(3, 6))
    shapes = [builder.facts.shapes.get(name, ()) for name in names]
    sizes = [shape[-1] for shape in shapes if len(shape) == 3 and shape[-1] is not None]
    if len(sizes) < 3 or builder.attributes.get("unidirectional"):
        return False
    if any(builder.input(place) for place in range(6, 10)) or any(
        builder.output(place) for place in range(1, 4)
    ):
        return False
    added = _mask(builder, mask, names[1])
    if added is None:
        return False
    if bias:
        pieces = builder.split(bias, sizes)
        names = [builder.add("Add", name, piece) for name, piece in zip(names, pieces, strict=True)]
    return _attend(builder, names, sizes, (added, extra))


def _attend(builder: NodeBuilder, names: list[str], sizes: list[int], added: tuple[str, str]) -> bool:
    """Add the attention of queries, keys and values [batch, tokens, hidden], given the scores' addend."""
    heads = int(builder.attributes["num_heads"])
    shapes = [builder.integers([0, 0, heads, size // heads]) for size in sizes]
    turns = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    query, key, value = (
        builder.add("Transpose", builder.add("Reshape", name, shape), perm=turn)
        for name, shape, turn in zip(names, shapes, turns, strict=True)
    )
    scale = float(builder.attributes.get("scale", 0.0)) or 1 / math.sqrt(sizes[0] // heads)
    scores = builder.add("Mul", builder.add("MatMul", query, key), builder.constant(scale, "scale"))
    for name in filter(None, added):
        scores = builder.add("Add", scores, name)
    mixed = builder.add("MatMul", builder.add("Softmax", scores, axis=-1), value)
    builder.add(
        "Reshape", builder.add("Transpose", mixed, perm=[0, 2, 1, 3]), builder.integers([0, 0, sizes[2]])
    )
    return builder.end()


def _counts_tokens(builder: NodeBuilder, mask: str) -> bool:
    """Return whether a vector is the sum of a mask over its tokens, or comes from the node that sums it."""
    maker = builder.facts.producers.get(mask)
    while maker is not None and maker.op_type == "Cast":
        maker = builder.facts.producers.get(maker.input[0])
    return maker is not None and maker.op_type in ("ReduceSum", "EmbedLayerNormalization")


def _mask(builder: NodeBuilder, mask: str, keys: str) -> str | None:
    """Turn a mask into an addend of the scores; return its name, "" without a mask, None for other masks.

    Masks are [batch, tokens] or [batch, tokens, tokens], 0 for masked tokens, or [batch], the numbers of
    unmasked tokens, from a sum: other vectors may hold two or three numbers for each sample.
    """
    if not mask:
        return NONE
    rank = builder.rank_of(mask)
    if rank == 1 and _counts_tokens(builder, mask):
        count = builder.add("Gather", builder.add("Shape", keys), builder.integer(1))
        places = builder.add("Range", builder.integer(0), count, builder.integer(1))
        counts = builder.cast(builder.add("Unsqueeze", mask, builder.integers([1])), TensorProto.INT64)
        mask, rank = builder.add("Less", places, counts), 2
    elif rank in (2, 3):
        mask = builder.cast(mask, TensorProto.BOOL)
    else:
        return None
    mask = builder.add("Unsqueeze", mask, builder.integers([1, 2] if rank == 2 else [1]))
    masked = float(builder.attributes.get("mask_filter_value", _MASKED))
    return builder.add("Where", mask, builder.constant(0.0, "kept"), builder.constant(masked, "masked"))
