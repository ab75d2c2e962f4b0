"""Caches of keys and values in 8 or 4 bits: a quarter or an eighth of a decoder's state between steps.

GroupQueryAttention of com.microsoft reads and writes such caches itself (attributes ``k_quant_type`` and
``v_quant_type`` of ONNX Runtime 1.32), with a scale for each channel of each head. In 4 bits a byte holds two
channels, the even one in its low half, each with 8 added. A cache that a Concat makes is joined in int8: new
entries are quantized once, and the joined cache is dequantized for its consumers. No Concat takes 4-bit
integers.
Keys and values of an encoder, which no step changes, are kept in int8
(:mod:`transforms.features.caches.store_passed`).

The axis along which the Concat joins is that of the tokens: keys may be [batch, heads, tokens, channels] or
[batch, heads, channels, tokens], or have one axis for heads and channels. The first of the other axes is the
batch; scales belong to those of the others whose size is known.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from transforms.features.caches.key_rotations import takes_rotation
from transforms.features.caches.passed_states import LEAST_RANK, find_passed
from transforms.features.caches.store_passed import store_passed
from transforms.features.caches.value_offsets import offset_values, takes_offset
from transforms.graph import dtypes, walk
from transforms.graph.rewire import RUNTIME_DOMAIN, drop, onnx_op, position
from transforms.graph.selection import label_of
from transforms.model.model_error import ModelError

log = logging.getLogger(__name__)

ATTENTION = "GroupQueryAttention"
SCALES = 12  # the input of an attention for the scale of keys, before that of values
BITS, KIND = "kv_cache_bit_width", "{}_quant_type"  # attributes of an attention
TOKENS = 2  # the axis of an attention
_FIRST_OPSET = 13  # whose QuantizeLinear has an axis


@dataclass(frozen=True)
class Cache:
    """A cache: the input with the previous entries, the output with the new ones, the node between them.

    ``tokens``: the axis that grows. A cache of another float type than the node computes in has a Cast at
    either end, ``casts``.
    """

    past: gs.Variable
    present: gs.Variable
    node: gs.Node
    tokens: int
    casts: tuple[gs.Node, ...] = ()

    @property
    def channels(self) -> tuple[int, ...]:
        """The axes that scales belong to."""
        shape = self.past.shape
        _, *further_axes = (axis for axis in range(len(shape)) if axis != self.tokens)
        return tuple(axis for axis in further_axes if isinstance(shape[axis], int))

    @property
    def is_of_keys(self) -> bool:
        """Whether an attention makes keys of it, not values."""
        keys = self.node.outputs[1] if self.node.op == ATTENTION else None
        return any(tensor is keys for tensor in (self.present, *(cast.inputs[0] for cast in self.casts)))

    @property
    def takes_offset(self) -> bool:
        """Whether it is of values, from which an attention can take an offset."""
        return self.node.op == ATTENTION and not self.is_of_keys and takes_offset(self.node)

    @property
    def takes_rotation(self) -> bool:
        """Whether it is of keys, which an attention can keep in other axes."""
        return self.is_of_keys and takes_rotation(self.node)


def find_caches(graph: gs.Graph, bits: int = 8) -> list[Cache]:
    """Return the caches that :func:`quantize_caches` can quantize.

    A GroupQueryAttention or a Concat reads the input and makes the output, both in float32, or with a Cast
    from another type and back to it. Apart from this, consumers read only the shape of the input, and of the
    output of an attention.

    Raises ModelError for 4 ``bits`` and a cache that a Concat makes.
    """
    walk.check_graph(graph)
    inputs, outputs = {id(tensor) for tensor in graph.inputs}, {id(tensor) for tensor in graph.outputs}
    caches = list[Cache]()
    for node in graph.nodes:
        ends = _ends(node)
        of_node = list(filter(None, (_cache(node, *end, inputs, outputs) for end in ends)))
        if len(of_node) == len(ends):
            caches += of_node
    wrong = [cache.node for cache in caches if bits < 8 and cache.node.op != ATTENTION]
    if wrong:
        raise ModelError(f"{wrong[0].op} '{label_of(wrong[0])}': only {ATTENTION} takes caches in int{bits}")
    return caches


def quantize_caches(
    graph: gs.Graph,
    scales: Mapping[str, Float32Array],
    *,
    bits: int = 8,
    offsets: Mapping[str, Float32Array] | None = None,
) -> int:
    """Store caches in 8 or 4 bits, in place; return how many.

    ``scales``: by names of outputs, above 0, with the axes ``channels`` of the cache: [heads, channels], for
    example. Inputs and outputs of these caches become int8, in 4 bits uint8 with half the channels; all
    others stay. ``offsets``: for the values of attentions, with the form of ``scales``; they are subtracted
    from the stored values and added again to the output of the attention. A Concat gets scales along the one
    of these axes that leaves the least error; so do states of an encoder, in int8 for all ``bits``. Caches
    without scales stay as they are, so that a second run returns 0.

    Raises ModelError below opset 13, and for 4 bits with a cache that a Concat makes.
    """
    caches = [cache for cache in find_caches(graph, bits) if str(cache.present.name) in scales]
    passed = [state for state in find_passed(graph) if state.name in scales]
    if (caches or passed) and graph.opset < _FIRST_OPSET:
        raise ModelError(f"caches in int{bits} need opset {_FIRST_OPSET}, the model has {graph.opset}")
    names = walk.Names(graph)
    for cache in caches:
        _drop_casts(graph, cache)
        scale = np.asarray(scales[str(cache.present.name)], np.float32)
        if cache.node.op == ATTENTION:
            if (offset := (offsets or {}).get(str(cache.present.name))) is not None:
                offset_values(graph, cache.node, offset, names)
            _quantize_attention(cache, scale, names, bits)
        else:
            _quantize_concat(graph, cache, scale, names)
            cache.past.dtype = np.dtype(np.int8)
    for state in passed:
        steps, attributes = _along_one_axis(scales[state.name], state.channels)
        store_passed(graph, state, np.ascontiguousarray(steps, np.float32), attributes, names)
    log.debug("caches in int%d: %d, of an encoder: %d", bits, len(caches), len(passed))
    return len(caches) + len(passed)


def _ends(node: gs.Node) -> list[tuple[gs.Tensor, gs.Tensor, int]]:
    """Return the possible caches of a node: the previous entries, the result, and the axis of the tokens."""
    if node.op == ATTENTION and node.domain == RUNTIME_DOMAIN and len(node.outputs) > 2:
        return [(*pair, TOKENS) for pair in zip(node.inputs[3:5], node.outputs[1:3], strict=True)]
    if onnx_op(node) == "Concat" and len(node.inputs) == 2:
        past, axis = node.inputs[0], int(node.attrs["axis"])
        return [(past, node.outputs[0], axis % max(len(past.shape or ()), 1))]
    return []


def _cache(
    node: gs.Node, before: gs.Tensor, after: gs.Tensor, tokens: int, inputs: set[int], outputs: set[int]
) -> Cache | None:
    first, last = walk.producer(before), [user for user in after.outputs if _is_end(user, outputs)]
    past = first.inputs[0] if first is not None and first.op == "Cast" else before
    present = last[0].outputs[0] if last else after
    if id(past) not in inputs or id(present) not in outputs or len(past.shape or ()) < LEAST_RANK:
        return None
    if not all(dtypes.is_type(t, dtypes.FLOAT) for t in (before, after)) or present.dtype != past.dtype:
        return None
    consumers = [user for tensor in {id(t): t for t in (past, before)}.values() for user in tensor.outputs]
    consumers += after.outputs if node.op == ATTENTION else []
    casts = tuple(cast for cast in (*([first] if past is not before else []), *last[:1]) if cast is not None)
    own_ids = {id(node), *map(id, casts)}
    if any(user.op != "Shape" and id(user) not in own_ids for user in consumers):
        return None
    return Cache(past, present, node, tokens, casts)


def _is_end(node: gs.Node, outputs: set[int]) -> bool:
    return node.op == "Cast" and id(node.outputs[0]) in outputs and not node.outputs[0].outputs


def _drop_casts(graph: gs.Graph, cache: Cache) -> None:
    """Let the node of a cache read the input and make the output itself."""
    for cast in cache.casts:
        inner, outer = cast.outputs[0], cast.inputs[0]
        drop(graph, [cast])
        if inner is cache.present:
            walk.redirect(outer, inner)
            walk.replace_output(cache.node, outer, inner)
        else:
            walk.redirect(inner, outer)
    cache.past.dtype = cache.present.dtype = np.dtype(np.float32)


def _quantize_attention(cache: Cache, scale: Float32Array, names: walk.Names, bits: int) -> None:
    """Let an attention keep keys or values in few bits, with a scale for each channel of each head."""
    node, place = cache.node, int(cache.present is cache.node.outputs[2])
    inputs = [*node.inputs, *(gs.Variable.empty() for _ in range(SCALES + 2 - len(node.inputs)))]
    inputs[SCALES + place] = gs.Constant(names.derive(cache.present.name, "scale"), scale.reshape(-1))
    node.inputs = inputs
    node.attrs |= {BITS: bits, KIND.format("kv"[place]): "PER_CHANNEL"}
    for end in (cache.past, cache.present):
        end.dtype = np.dtype(np.int8 if bits == 8 else np.uint8)
        if bits == 4:
            end.shape = [*end.shape[:-1], scale.shape[1] // 2]


def _quantize_concat(graph: gs.Graph, cache: Cache, scale: Float32Array, names: walk.Names) -> None:
    """Join a cache in int8, and dequantize it for its consumers."""
    node, present, new = cache.node, cache.present, cache.node.inputs[1]
    steps, attributes = _along_one_axis(scale, cache.channels)
    grid = [
        gs.Constant(names.derive(present.name, "scale"), np.ascontiguousarray(steps)),
        gs.Constant(names.derive(present.name, "zero_point"), np.zeros(steps.shape, np.int8)),
    ]
    stored = gs.Variable(names.derive(new.name, "int8"), np.int8, new.shape)
    joined = gs.Variable(present.name, np.int8, present.shape)
    present.name = names.derive(joined.name, "float")
    quantize = gs.Node(
        "QuantizeLinear", names.derive(new.name, "quantize"), dict(attributes), [new, *grid], [stored]
    )
    dequantize = gs.Node(
        "DequantizeLinear", names.derive(joined.name, "dequantize"), attributes, [joined, *grid]
    )
    node.inputs, node.outputs = [cache.past, stored], [joined]
    dequantize.outputs = [present]
    graph.outputs = [joined if output is present else output for output in graph.outputs]
    place = position(graph, node)
    graph.nodes[place : place + 1] = [quantize, node, *([dequantize] if present.outputs else [])]


def _along_one_axis(scale: Float32Array, axes: Sequence[int]) -> tuple[Float32Array, dict[str, int]]:
    """Return the largest scales along the axis that leaves the least rounding error, and its attribute."""
    candidates: list[tuple[float, Float32Array, int]] = []
    for place, axis in enumerate(axes):
        steps = scale.max(tuple(other for other in range(scale.ndim) if other != place))
        candidates.append((float(np.square(steps).mean()), steps, axis))
    if not candidates:
        return scale, {}
    _, steps, axis = min(candidates, key=lambda candidate: candidate[0])
    return steps, {"axis": axis}
