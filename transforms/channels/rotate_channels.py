"""Orthogonal matrices that spread outlying channels over all, in the layers that make and read them.

Between the two, channels are only moved, as attention moves heads, and rows are summed: what values are
multiplied with by attention is a factor of rows, the same for all channels of a head.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from ops.rotations import rotate
from transforms.channels.channel_layout import Layout, places_after, rows
from transforms.channels.left_operands import channels_of, multiplies
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import bias
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
    heads = {
        one.reader.inputs[0].name: one for one in HeadFinder(graph, resolve(exclude, graph)).heads().values()
    }
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


@dataclass(frozen=True)
class _Way:
    """A tensor on the way from a layer, and where the channels lie; those of one label may be mixed."""

    tensor: gs.Tensor
    layout: Layout
    labels: Layout
    offsets: tuple[gs.Constant, ...] = ()
    is_moved: bool = False


class HeadFinder:
    """Finds channels that may be rotated between two layers of a graph, none in bodies.

    Both multiply rows with constant float32 matrices of their own. In between there are constants added by
    channel, Identity, and what :mod:`transforms.channels.channel_layout` knows; one reader of every tensor
    takes these channels, and no graph has it as an output.
    """

    def __init__(self, graph: gs.Graph, exclude: Container[gs.Node] = ()) -> None:
        """Note what must not change in the graph, and nodes that must not."""
        self._graph, self._exclude = graph, exclude
        self._fixed = walk.ends(graph)
        self._members = {id(node) for node in graph.nodes}

    def heads(self) -> dict[int, Heads]:
        """Return what may be rotated, by the id of the tensor that the second layer reads."""
        found = [one for node in self._graph.nodes for one in self._from(node)]
        return {id(one.reader.inputs[0]): one for one in found}

    def _from(self, node: gs.Node) -> Iterator[Heads]:
        if node.op not in ("MatMul", "Gemm") or not self._is_layer(node, node.inputs[0]):
            return
        weight, added = node.inputs[1], bias(node)
        axis = -2 if node.attrs.get("transB", 0) else -1
        channels = np.arange(weight.shape[axis])
        offsets = () if added is None else (added,)
        if not all(self._is_offset(tensor, len(channels)) for tensor in offsets):
            return
        for way, reader in self._along(_Way(node.outputs[0], channels, 0 * channels, offsets)):
            layout = rows(way.layout)
            groups = None if layout is None else _groups(way.labels[layout])
            if layout is None or groups is None or len(layout) != channels_of(reader):
                continue
            made = [_Rotated(t, -1, layout[groups]) for t in way.offsets]
            read = _Rotated(reader.inputs[1], -1 if reader.attrs.get("transB", 0) else -2, groups)
            yield Heads(reader, groups, (_Rotated(weight, axis, layout[groups]), *made, read))

    def _along(self, way: _Way) -> Iterator[tuple[_Way, gs.Node]]:
        """Yield each layer that reads channels, each of other ones, and how they came there."""
        pending = [way]
        while pending:
            way = pending.pop()
            uses = walk.uses(way.tensor)
            if id(way.tensor) in self._fixed or not all(self._may_pass(node) for node, _ in uses):
                continue
            node, index = uses[0] if len(uses) == 1 else (None, 0)
            if node is not None and self._is_layer(node, way.tensor):
                yield way, node
            elif node is not None and node.op == "Identity":
                pending.append(replace(way, tensor=node.outputs[0]))
            elif node is not None and node.op == "Add" and not way.is_moved:
                added = node.inputs[1 - index]
                if self._is_offset(added, len(way.layout)):
                    pending.append(replace(way, tensor=node.outputs[0], offsets=(*way.offsets, added)))
            else:
                for made, layout in reversed(list(places_after(way.tensor, way.layout))):
                    labels = _apart(made.inputs[0], way, layout)
                    pending.append(_Way(made, layout, labels, way.offsets, is_moved=True))

    def _may_pass(self, node: gs.Node) -> bool:
        return id(node) in self._members and node not in self._exclude and node.domain in STANDARD_DOMAINS

    def _is_layer(self, node: gs.Node, tensor: gs.Tensor) -> bool:
        return multiplies(node, tensor) and self._may_pass(node) and self._is_own(node.inputs[1])

    def _is_offset(self, tensor: gs.Tensor, channels: int) -> bool:
        return self._is_own(tensor) and bool(tensor.shape) and tensor.shape[-1] == channels

    def _is_own(self, tensor: gs.Tensor) -> bool:
        own = isinstance(tensor, gs.Constant) and id(tensor) not in self._fixed
        return own and dtypes.is_type(tensor, dtypes.FLOAT) and walk.is_read_once(tensor)


def _apart(node: gs.Node, way: _Way, layout: Layout) -> Layout:
    """Return labels that tell channels apart if a product of computed tensors sums rows of them by factors of
    their own.
    """
    if node.op != "MatMul":
        return way.labels
    kept = -1 if node.inputs[1] is way.tensor else -2
    shape = [1 if axis == layout.ndim + kept else size for axis, size in enumerate(layout.shape)]
    parts = np.broadcast_to(np.arange(np.prod(shape)).reshape(shape), layout.shape)
    labels = way.labels * parts.size
    labels[layout] += parts
    return labels


def _groups(labels: Layout) -> Layout | None:
    """Return the places of equal labels, [groups, size], None unless there are two and more of each."""
    counts = np.unique(labels, return_counts=True)[1]
    if len(set(counts)) != 1 or counts[0] < 2:
        return None
    return np.argsort(labels, kind="stable").reshape(len(counts), -1)
