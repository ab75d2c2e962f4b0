"""Caches of keys and values in 8 or 4 bits: a quarter or an eighth of what a decoder keeps between steps.

GroupQueryAttention of com.microsoft reads and writes such caches itself (attributes ``k_quant_type`` and
``v_quant_type`` of ONNX Runtime 1.32), with a scale for each channel of each head. In 4 bits a byte holds two
channels, the even one in its low half, each with 8 added. A cache that a Concat makes is joined in int8: what
is new is quantized once, and the whole is dequantized for its consumers. No Concat takes 4-bit integers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from transforms.graph import dtypes, walk
from transforms.graph.rewire import RUNTIME_DOMAIN, STANDARD_DOMAINS, position
from transforms.graph.selection import label_of
from transforms.model.model_error import ModelError

log = logging.getLogger(__name__)

ATTENTION = "GroupQueryAttention"
_RANK = 4  # batch, heads, tokens, channels
_SCALES = 12  # the input of an attention for the scale of keys, before that of values
_FIRST_OPSET = 13  # whose QuantizeLinear has an axis


@dataclass(frozen=True)
class Cache:
    """A cache: the input that holds what was before, the output with what is new, the node between them."""

    past: gs.Variable
    present: gs.Variable
    node: gs.Node


def find_caches(graph: gs.Graph, bits: int = 8) -> list[Cache]:
    """Return the caches of float32 that :func:`quantize_caches` can quantize.

    A GroupQueryAttention or a Concat reads the input [batch, heads, tokens, channels] and makes the output;
    beside that only shapes are read of the input, and of the output of an attention.

    Raises ModelError for 4 ``bits`` and a cache that a Concat makes.
    """
    walk.check_graph(graph)
    ends = {id(one) for one in graph.inputs}, {id(one) for one in graph.outputs}
    found = []
    for node in graph.nodes:
        pairs = _pairs(node)
        caches = [Cache(*pair, node) for pair in pairs if _is_cache(*pair, node, *ends)]
        if len(caches) == len(pairs):
            found += caches
    wrong = [one.node for one in found if bits < 8 and one.node.op != ATTENTION]
    if wrong:
        raise ModelError(f"{wrong[0].op} '{label_of(wrong[0])}': only {ATTENTION} takes caches in int{bits}")
    return found


def quantize_caches(graph: gs.Graph, scales: Mapping[str, Float32Array], *, bits: int = 8) -> int:
    """Store caches in 8 or 4 bits, in place; return how many.

    ``scales``: by names of outputs, of each head and channel [heads, channels], above 0. Inputs and outputs
    of these caches become int8, in 4 bits uint8 with half the channels; all others stay. A Concat gets a
    scale for each head or for each channel, whichever has less error. Caches that have no scales stay as they
    are, so that a second run returns 0.

    Raises ModelError below opset 13, and for 4 bits with a cache that a Concat makes.
    """
    caches = [one for one in find_caches(graph, bits) if str(one.present.name) in scales]
    if caches and graph.opset < _FIRST_OPSET:
        raise ModelError(f"caches in int{bits} need opset {_FIRST_OPSET}, the model has {graph.opset}")
    names = walk.Names(graph)
    for one in caches:
        scale = np.asarray(scales[str(one.present.name)], np.float32)
        if one.node.op == ATTENTION:
            _quantize_attention(one, scale, names, bits)
        else:
            _quantize_concat(graph, one, scale, names)
            one.past.dtype = np.dtype(np.int8)
    log.debug("caches in int%d: %d", bits, len(caches))
    return len(caches)


def _pairs(node: gs.Node) -> list[tuple[gs.Tensor, gs.Tensor]]:
    if node.op == ATTENTION and node.domain == RUNTIME_DOMAIN and len(node.outputs) > 2:
        return list(zip(node.inputs[3:5], node.outputs[1:3], strict=True))
    if node.op == "Concat" and node.domain in STANDARD_DOMAINS and len(node.inputs) == 2:
        return [(node.inputs[0], node.outputs[0])]
    return []


def _is_cache(
    past: gs.Tensor, present: gs.Tensor, node: gs.Node, inputs: set[int], outputs: set[int]
) -> bool:
    if id(past) not in inputs or id(present) not in outputs or len(past.shape or ()) != _RANK:
        return False
    if not all(dtypes.is_type(one, dtypes.FLOAT) for one in (past, present)):
        return False
    consumers = [consumer for consumer in past.outputs if consumer is not node]
    consumers += present.outputs if node.op == ATTENTION else []
    return all(consumer.op == "Shape" for consumer in consumers)


def _quantize_attention(cache: Cache, scale: Float32Array, names: walk.Names, bits: int) -> None:
    """Let an attention keep keys or values in few bits, with a scale for each channel of each head."""
    node, place = cache.node, int(cache.present is cache.node.outputs[2])
    inputs = [*node.inputs, *(gs.Variable.empty() for _ in range(_SCALES + 2 - len(node.inputs)))]
    inputs[_SCALES + place] = gs.Constant(names.derive(cache.present.name, "scale"), scale.reshape(-1))
    node.inputs = inputs
    node.attrs |= {"kv_cache_bit_width": bits, f"{'kv'[place]}_quant_type": "PER_CHANNEL"}
    for one in (cache.past, cache.present):
        one.dtype = np.dtype(np.int8 if bits == 8 else np.uint8)
        if bits == 4:
            one.shape = [*one.shape[:-1], scale.shape[1] // 2]


def _quantize_concat(graph: gs.Graph, cache: Cache, scale: Float32Array, names: walk.Names) -> None:
    """Join a cache in int8, and dequantize it for its consumers."""
    node, present = cache.node, cache.present
    per_head, per_channel = scale.max(1), scale.max(0)
    is_per_head = scale.shape[1] * np.square(per_head).sum() <= scale.shape[0] * np.square(per_channel).sum()
    steps, axis = (per_head, 1) if is_per_head else (per_channel, 3)
    factor = gs.Constant(names.derive(present.name, "scale"), np.ascontiguousarray(steps))
    zero = gs.Constant(names.derive(present.name, "zero_point"), np.zeros(len(steps), np.int8))
    new = node.inputs[1]
    stored = gs.Variable(names.derive(new.name, "int8"), np.int8, new.shape)
    whole = gs.Variable(present.name, np.int8, present.shape)
    attributes = {"axis": axis}
    quantize = gs.Node(
        "QuantizeLinear", names.derive(new.name, "quantize"), dict(attributes), [new, factor, zero], [stored]
    )
    present.name = names.derive(whole.name, "float")
    dequantize = gs.Node(
        "DequantizeLinear",
        names.derive(whole.name, "dequantize"),
        attributes,
        [whole, factor, zero],
        [present],
    )
    node.inputs, node.outputs = [cache.past, stored], [whole]
    dequantize.outputs = [present]
    graph.outputs = [whole if one is present else one for one in graph.outputs]
    place = position(graph, node)
    graph.nodes[place : place + 1] = [quantize, node, *([dequantize] if present.outputs else [])]
