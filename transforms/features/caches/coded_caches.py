"""Caches that a model keeps in few bits: encode float numbers, decode integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Float32Array
from transforms.features.caches.key_rotations import Rotation, key_rotation
from transforms.features.caches.value_offsets import value_offset
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.state_outputs import found_pairs
from transforms.quantize_caches import ATTENTION, BITS, KIND, SCALES, TOKENS


@dataclass(frozen=True)
class CodedCache:
    """An input of codes and the output that returns them, or "", with scales that broadcast over the cache.

    ``offset``: subtracted before rounding, broadcasts too; ``rotation``: of keys, applied before the offset.

    ``tokens``: the axis that grows, None for a cache computed by an encoder.
    """

    past: str
    present: str
    tokens: int | None
    scale: Float32Array
    bits: int
    offset: Float32Array | None = None
    rotation: Rotation | None = None

    def encode(self, numbers: AnyArray) -> AnyArray:
        """Return the codes of a cache: int8, or for 4 bits uint8 with half as many channels."""
        if self.offset is not None:
            numbers = numbers.astype(np.float32) - self.offset
        if self.rotation is not None:
            numbers = self.rotation.kept(numbers.astype(np.float32))
        highest = (1 << (self.bits - 1)) - 1
        codes = np.clip(np.rint(numbers.astype(np.float32) / self.scale), -highest - 1, highest)
        if self.bits == 8:
            return codes.astype(np.int8)
        halves = (codes + 8).astype(np.uint8)
        return halves[..., ::2] | halves[..., 1::2] << 4

    def decode(self, codes: AnyArray) -> Float32Array:
        """Return the float32 numbers of codes."""
        if self.bits < 8:
            halves = np.stack([codes & 15, codes >> 4], -1).astype(np.int8) - 8
            codes = halves.reshape(*codes.shape[:-1], -1)
        numbers = codes.astype(np.float32) * self.scale
        if self.rotation is not None:
            return self.rotation.keys(numbers)
        return numbers if self.offset is None else numbers + self.offset


def coded_caches(graph: gs.Graph) -> list[CodedCache]:
    """Return the caches of a model that :func:`transforms.quantize_caches.quantize_caches` stored."""
    inputs, outputs = {id(tensor) for tensor in graph.inputs}, {id(tensor) for tensor in graph.outputs}
    caches = [
        CodedCache(str(past.name), str(present.name), *_grid(node, place))
        for node in graph.nodes
        for past, present, place in _places(node)
        if id(past) in inputs and id(present) in outputs
    ]
    past_names = {cache.past for cache in caches}
    return caches + [cache for cache in _of_encoders(graph) if cache.past not in past_names]


def _of_encoders(graph: gs.Graph) -> list[CodedCache]:
    """Return the caches that :func:`transforms.features.caches.store_passed.store_passed` stored."""
    outputs, pairs, caches = {str(output.name): output for output in graph.outputs}, found_pairs(graph), []
    for past in graph.inputs:
        name = str(past.name)
        present = pairs.get(name, "")
        ends = (past, *([outputs[present]] if present else []))
        readers = [node for end in ends for node in end.outputs if node.op == "DequantizeLinear"]
        if past.dtype == np.int8 and readers and walk.is_given(readers[0].inputs[1]):
            caches.append(CodedCache(name, present, None, _along(readers[0], len(past.shape)), 8))
    return caches


def _places(node: gs.Node) -> list[tuple[gs.Tensor, gs.Tensor, int]]:
    """Return the past and present codes of a node, each with 0 for keys or a Concat, 1 for values."""
    if node.op == ATTENTION and BITS in node.attrs:
        places = [place for place in (0, 1) if KIND.format("kv"[place]) in node.attrs]
        return [(node.inputs[3 + place], node.outputs[1 + place], place) for place in places]
    is_joined = node.op == "Concat" and node.inputs[0].dtype == np.int8
    return [(node.inputs[0], node.outputs[0], 0)] if is_joined and _quantize(node) else []


def _grid(node: gs.Node, place: int) -> tuple[int, Float32Array, int, Float32Array | None, Rotation | None]:
    """Return the token axis of a node's cache, its scale, bits, offset and rotation."""
    if node.op == ATTENTION:
        scale = _values(node.inputs[SCALES + place])
        shape = [1, int(node.attrs["kv_num_heads"]), 1, -1]
        offset = value_offset(node) if place else None
        shifted = offset if offset is None else offset.reshape(shape)
        rotation = None if place else key_rotation(node)
        return TOKENS, scale.reshape(shape), int(node.attrs[BITS]), shifted, rotation
    quantize, rank = _quantize(node), len(node.inputs[0].shape)
    assert quantize is not None, "it was found before"
    return int(node.attrs["axis"]) % rank, _along(quantize, rank), 8, None, None


def _along(node: gs.Node, rank: int) -> Float32Array:
    """Return the scales of a node in a shape that broadcasts over its input."""
    scale, shape = _values(node.inputs[1]), [1] * rank
    if scale.ndim:
        shape[int(node.attrs["axis"])] = -1
    return scale.reshape(shape)


def _quantize(node: gs.Node) -> gs.Node | None:
    """Return the node that quantizes the new tokens a Concat appends to a cache."""
    maker = walk.producer(node.inputs[1]) if len(node.inputs) > 1 else None
    return maker if maker is not None and maker.op == "QuantizeLinear" else None


def _values(tensor: gs.Tensor) -> Float32Array:
    assert isinstance(tensor, gs.Constant), "scales of caches are written so"
    return np.asarray(load(tensor), np.float32)
