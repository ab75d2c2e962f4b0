"""Channels of one layer that may be mixed with each other, if the layer that reads them mixes them back.

Between the two, channels are only moved, as attention moves heads, and rows are summed: what values are
multiplied with by attention is a factor of rows, the same for all channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float64Array
from ops.rotations import Rotation
from transforms.graph import dtypes, walk
from transforms.graph.channel_layout import Layout, places_after, rows
from transforms.graph.dot_products import bias
from transforms.graph.lazy_values import Weight, become_constant, derived
from transforms.graph.left_operands import channels_of, multiplies
from transforms.graph.rewire import STANDARD_DOMAINS

_ROWS = 4096

Recall = Callable[[Weight, Hashable, Callable[[], Weight]], Weight]
"""Returns what is computed of a weight in some way, or was before."""


def anew(values: Weight, how: Hashable, compute: Callable[[], Weight]) -> Weight:
    """Remember nothing."""
    return compute()


@dataclass(frozen=True)
class MixedConstant:
    """A constant with channels along an axis, counted from the end; ``groups`` [groups, size] are mixed.

    ``factors`` [channels] multiply them before.
    """

    tensor: gs.Constant
    axis: int
    groups: Layout
    factors: Float64Array | None = None

    def mix(self, rotation: Rotation, recall: Recall = anew) -> None:
        """Rotate each group; what float64 makes is rounded once. ``recall``: what remembers it."""

        def _mixed(values: Float64Array) -> Float64Array:
            values = np.array(values)
            moved = np.moveaxis(values, self.axis, -1)
            moved = moved[None] if moved.ndim == 1 else moved
            for start in range(0, len(moved), _ROWS):  # a part of a large weight in float64 at a time
                rows = moved[start : start + _ROWS]
                exact = rows.astype(np.float64)
                exact *= 1 if self.factors is None else self.factors
                rows[..., self.groups] = rotation(exact[..., self.groups])
            return values

        source: Weight = self.tensor._values
        factors = None if self.factors is None else self.factors.tobytes()
        how = rotation, self.axis, self.groups.shape, self.groups.tobytes(), factors
        become_constant(self.tensor, recall(source, how, lambda: derived(source, _mixed, np.float32)))


@dataclass(frozen=True)
class Heads:
    """Channels [heads, channels of each] of what a layer reads; ``constants``: all that they are mixed in."""

    reader: gs.Node
    channels: Layout
    constants: tuple[MixedConstant, ...]

    def mix(self, rotation: Rotation, recall: Recall = anew) -> None:
        """Rotate the channels of each head where they are made, and back where they are read."""
        for one in self.constants:
            one.mix(rotation, recall)


@dataclass(frozen=True)
class _Way:
    """A tensor on the way from a layer, and where the channels lie; those of one label may be mixed."""

    tensor: gs.Tensor
    layout: Layout
    labels: Layout
    offsets: tuple[gs.Constant, ...] = ()
    is_moved: bool = False


class HeadFinder:
    """Finds channels that may be mixed between two layers of a graph, none in bodies.

    Both multiply rows with constant float32 matrices of their own. In between there are constants added by
    channel, Identity, and what :mod:`transforms.graph.channel_layout` knows; one reader of every tensor takes
    these channels, and no graph has it as an output.
    """

    def __init__(self, graph: gs.Graph, exclude: Container[gs.Node] = ()) -> None:
        """Note what must not change in the graph, and nodes that must not."""
        self._graph, self._exclude = graph, exclude
        self._fixed = walk.ends(graph)
        self._members = {id(node) for node in graph.nodes}

    def heads(self) -> dict[int, Heads]:
        """Return what may be mixed, by the id of the tensor that the second layer reads."""
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
            made = [MixedConstant(t, -1, layout[groups]) for t in way.offsets]
            read = MixedConstant(reader.inputs[1], -1 if reader.attrs.get("transB", 0) else -2, groups)
            yield Heads(reader, groups, (MixedConstant(weight, axis, layout[groups]), *made, read))

    def _along(self, way: _Way) -> Iterator[tuple[_Way, gs.Node]]:
        """Yield each layer that reads channels, each of other ones, and how they came there."""
        waiting = [way]
        while waiting:
            way = waiting.pop()
            uses = walk.uses(way.tensor)
            if id(way.tensor) in self._fixed or not all(self._may_pass(node) for node, _ in uses):
                continue
            if len(uses) == 1 and self._is_layer(uses[0][0], way.tensor):
                yield way, uses[0][0]
            else:
                waiting += reversed([*self._after(way, uses)])

    def _after(self, way: _Way, uses: list[tuple[gs.Node, int]]) -> Iterator[_Way]:
        """Yield where the channels are after the nodes that read them, none of which is a layer."""
        if len(uses) == 1:
            node, index = uses[0]
            if node.op == "Identity":
                yield replace(way, tensor=node.outputs[0])
                return
            if node.op == "Add" and not way.is_moved:
                added = node.inputs[1 - index]
                if self._is_offset(added, len(way.layout)):
                    yield replace(way, tensor=node.outputs[0], offsets=(*way.offsets, added))
                return
        for made, layout in places_after(way.tensor, way.layout):
            labels = _apart(made.inputs[0], way, layout)
            yield _Way(made, layout, labels, way.offsets, is_moved=True)

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
