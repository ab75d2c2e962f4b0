"""Orthogonal matrices that spread outlying channels over all, in the layers that make and read them.

Between the two, channels are only moved, as attention moves heads, and rows are summed: what values are
multiplied with by attention is a factor of rows, the same for all channels of a head.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from ops.rotations import rotate
from transforms.channels.channel_layout import Layout, rows
from transforms.channels.layer_pairs import PairFinder, Way
from transforms.channels.scaled_layer import Companion
from transforms.graph import walk
from transforms.graph.lazy_values import Weight, become_constant, derived
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.selection import Exclusion, resolve

log = logging.getLogger(__name__)

_ROWS = 4096


def rotate_channels(graph: gs.Graph, names: Collection[str], *, exclude: Exclusion = None) -> int:
    """Rotate the channels of named tensors of the outermost graph; return how many were rotated.

    A tensor that a MatMul or Gemm multiplies with a constant matrix, of channels that one such layer makes:
    values of attention are, for the layer after it. The channels of each head are multiplied with an
    orthogonal matrix (:func:`ops.rotations.rotate`), in the weight and bias of the layer that makes them, and
    with its inverse in the weight of the one that reads them (QuaRot, arXiv 2404.00456). Heads are kept
    apart, as each has scores of its own. No node is added. The same model in real arithmetic; each rotation
    rounds weights to float32 once.

    Does nothing to tensors that are not there, or of which another node takes channels; if a weight has
    another user; and for nodes in ``exclude``.
    """
    if not names:
        return 0
    new, count = walk.Names(graph), 0
    found = HeadFinder(graph, resolve(exclude, graph)).heads(graph).values()
    heads = {one.reader.inputs[0].name: one for one in found}
    for name in names:
        if name not in heads:
            log.debug("'%s': no channels that can be rotated", name)
            continue
        tensor = heads[name].reader.inputs[0]
        heads[name].rotate()
        tensor.name = new.derive(tensor.name, "rotated")
        count += 1
    return count


@dataclass(frozen=True)
class _Rotated:
    """A constant with channels along an axis, counted from the end; ``groups`` [groups, size] are rotated."""

    tensor: gs.Constant
    axis: int
    groups: Layout

    def rotate(self) -> None:
        """Rotate each group; what float64 makes is rounded once."""
        source: Weight = self.tensor._values
        become_constant(self.tensor, derived(source, self._values, np.float32))

    def _values(self, values: Float32Array) -> Float32Array:
        values = np.array(values)
        moved = np.moveaxis(values, self.axis, -1)
        moved = moved[None] if moved.ndim == 1 else moved
        for start in range(0, len(moved), _ROWS):  # a part of a large weight in float64 at a time
            part = moved[start : start + _ROWS]
            part[..., self.groups] = rotate(part[..., self.groups].astype(np.float64))
        return values


@dataclass(frozen=True)
class Heads:
    """Channels [heads, size of each] that a layer reads, and the ``constants`` that they are rotated in."""

    reader: gs.Node
    channels: Layout
    constants: tuple[_Rotated, ...]

    def rotate(self) -> None:
        """Rotate the channels of each head where they are made, and back where they are read."""
        for one in self.constants:
            one.rotate()


class HeadFinder(PairFinder):
    """Finds channels that may be rotated between two layers of a graph, none in bodies.

    Both multiply rows with constant float32 matrices of their own. In between there are constants added by
    channel, Identity, and what :mod:`transforms.channels.channel_layout` knows; one reader of every tensor
    takes these channels, and no graph has it as an output.
    """

    def heads(self, graph: gs.Graph) -> dict[int, Heads]:
        """Return what may be rotated, by the id of the tensor that the second layer reads."""
        members = {id(node) for node in graph.nodes}
        products = (node for node in graph.nodes if node.op in ("MatMul", "Gemm"))
        found = [one for node in products for one in self._from(node, members)]
        return {id(one.reader.inputs[0]): one for one in found}

    def _from(self, node: gs.Node, members: set[int]) -> Iterator[Heads]:
        for way, reader in self._follow(node, members, moves=True):
            layout = np.arange(way.channels) if way.layout is None else rows(way.layout)
            groups = None if layout is None else _groups(_labels(way)[layout])
            if layout is None or groups is None:
                continue
            axis = -2 if node.attrs.get("transB", 0) else -1
            made = [_Rotated(one.tensor, -1, layout[groups]) for one in way.companions]
            read = _Rotated(reader.inputs[1], -1 if reader.attrs.get("transB", 0) else -2, groups)
            yield Heads(reader, groups, (_Rotated(node.inputs[1], axis, layout[groups]), *made, read))

    def _passes(self, way: Way, node: gs.Node, index: int) -> bool:
        if node in self._exclude or node.domain not in STANDARD_DOMAINS:
            return False
        is_sum = node.op == "Add" and self._takes(way, node.inputs[1 - index], -1, is_offset=True)
        return is_sum or node.op == "Identity"

    def _takes(self, way: Way, tensor: gs.Tensor, axis: int, *, is_offset: bool) -> bool:
        fits = way.layout is None and self._is_own(tensor) and bool(tensor.shape)
        if not fits or tensor.shape[-1] != way.channels:
            return False
        way.companions.append(Companion(tensor, axis, is_offset))
        return True

    def _moved(self, way: Way, tensor: gs.Tensor, made: gs.Tensor, layout: Layout) -> Way:
        return replace(way, layout=layout, labels=_apart(made.inputs[0], tensor, layout, _labels(way)))


def _labels(way: Way) -> Layout:
    return np.zeros(way.channels, np.int64) if way.labels is None else way.labels


def _apart(node: gs.Node, tensor: gs.Tensor, layout: Layout, labels: Layout) -> Layout:
    """Return labels that tell channels apart if a product of computed tensors sums rows of them by factors of
    their own.
    """
    if node.op != "MatMul":
        return labels
    kept = -1 if node.inputs[1] is tensor else -2
    shape = [1 if axis == layout.ndim + kept else size for axis, size in enumerate(layout.shape)]
    parts = np.broadcast_to(np.arange(np.prod(shape)).reshape(shape), layout.shape)
    labels = labels * parts.size
    labels[layout] += parts
    return labels


def _groups(labels: Layout) -> Layout | None:
    """Return the places of equal labels, [groups, size], None unless there are two and more of each."""
    counts = np.unique(labels, return_counts=True)[1]
    if len(set(counts)) != 1 or counts[0] < 2:
        return None
    return np.argsort(labels, kind="stable").reshape(len(counts), -1)
