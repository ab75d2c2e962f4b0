"""Channels between layers that a factor for each can scale without changing what a model computes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from transforms.channels.channel_layout import MOVING, Layout, layout_of, moved, rows
from transforms.channels.edits import Change
from transforms.channels.per_channel import (
    Exponents,
    PerChannel,
    has_weight,
    inputs_of,
    is_stored,
    outputs_of,
)
from transforms.graph import walk
from transforms.graph.dot_products import bias
from transforms.graph.masks import masks_in
from transforms.graph.rewire import STANDARD_DOMAINS

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_WITH_CONSTANT = frozenset({"Add", "Min", "Max"})
_GATES = ("HardSwish", "Sigmoid", "HardSigmoid")


@dataclass(frozen=True, eq=False)
class Site:
    """Channels of tensors, and the initializers that take factors for them in.

    * ``channels``: their number.
    * ``tensors``: what is scaled, in the order in which it is computed; layers alone read the last one.
    * ``producing``: what computes the channels, and is divided by factors; without any, a Mul has to divide
      the tensor.
    * ``consuming``: the weights of the layers, which are multiplied.
    * ``layout``: which channel of ``producing`` each of the tensor is, where they were moved in between.
    * ``gate``: what has to see the numbers as they were, a Sigmoid or HardSigmoid that they are multiplied
      with, or a HardSwish.
    * ``is_shared``: whether others may read ``producing``; copies are divided then.
    """

    channels: int
    tensors: Sequence[gs.Tensor]
    producing: Sequence[PerChannel]
    consuming: Sequence[PerChannel]
    layout: Layout | None = None
    gate: gs.Node | None = None
    is_shared: bool = False

    @property
    def tensor(self) -> gs.Tensor:
        """The tensor that the layers read."""
        return self.tensors[-1]

    @property
    def gated(self) -> gs.Tensor:
        """The tensor that the gate reads, the same as ``tensor`` without one."""
        return self.tensor if self.gate is None else self.gate.inputs[0]

    def divided(self, exponents: Exponents) -> list[Change]:
        """Return what changes ``producing`` if the channels are divided by powers of two."""
        of_producers = exponents if self.layout is None else exponents[np.argsort(self.layout)]
        return [(held, -of_producers) for held in self.producing]


@dataclass
class _Path:
    """The way of channels from the layer that makes them on.

    ``rank`` is that of images, None for rows of features.
    """

    channels: int
    rank: int | None
    producing: list[PerChannel]
    tensors: list[gs.Tensor] = field(default_factory=list)
    is_flattened: bool = False
    layout: Layout | None = None
    gate: gs.Node | None = None


class SiteFinder:
    """Finds the sites of a graph, without those of graphs nested in it.

    Between the layers of a site lie only operators that commute with a positive factor for each channel:
    Relu, LeakyRelu, PRelu, pooling, Flatten, and sums with and bounds by constants, which are scaled as well.
    No tensor in between is an output or has another reader; every constant to be scaled is float32 and has
    no other reader.
    """

    def __init__(
        self, graph: gs.Graph, exclude: Container[gs.Node] = (), ends: Container[int] | None = None
    ) -> None:
        """Note what must not change: nodes in ``exclude``, and tensors.

        ``ends``: the inputs and outputs of all graphs of the model, those of this graph and in it by default.
        """
        self._fixed, self._exclude = walk.ends(graph) if ends is None else ends, exclude
        self._nodes, self._members = graph.nodes, {id(node) for node in graph.nodes}

    def pairs(self) -> list[Site]:
        """Return the sites that one layer reads, in the order of the layers that make them."""
        sites = (self._follow(node) for node in self._nodes)
        return [site for site in sites if site is not None and len(site.consuming) == 1]

    def between_convolutions(self) -> list[Site]:
        """Return the sites that convolutions make; a gate may lie in between, and several layers may read."""
        sites = (self._follow(node, gates=True) for node in self._nodes if node.op in CONVOLUTIONS)
        return [site for site in sites if site is not None]

    def may_change(self, tensor: gs.Tensor) -> bool:
        """Return whether a node of the graph makes a tensor, which is not an output."""
        producer = walk.producer(tensor)
        return producer is not None and id(producer) in self._members and id(tensor) not in self._fixed

    def before(self, layer: gs.Node) -> Site | None:
        """Return the site that a layer alone reads, None if no layer makes it.

        In between, channels may also be moved, as attention does with heads: by what
        :mod:`transforms.channels.channel_layout` knows.
        """
        for node in _layers_before(layer.inputs[0]):
            site = self._follow(node, moves=True)
            if site is not None and len(site.consuming) == 1 and site.consuming[0].node is layer:
                return site
        return None

    def _follow(self, node: gs.Node, *, moves: bool = False, gates: bool = False) -> Site | None:
        """Follow the channels that a layer makes to the layers that read them.

        ``moves``: channels may be moved in between; ``gates``: a gate may lie there.
        """
        path, tensor = self._start(node), node.outputs[0]
        while path is not None and tensor is not None:
            uses = walk.uses(tensor)
            if (
                not uses
                or id(tensor) in self._fixed
                or any(id(user) not in self._members for user, _ in uses)
            ):
                return None
            path.tensors.append(tensor)
            if all(index == 0 and self._ends(path, user) for user, index in uses):
                layout = None if path.layout is None else rows(path.layout)
                read = [inputs_of(user) for user, _ in uses]
                return Site(path.channels, path.tensors, path.producing, read, layout, path.gate)
            tensor = self._next(path, uses, moves) or (self._behind_gate(path, uses) if gates else None)
        return None

    def _start(self, node: gs.Node) -> _Path | None:
        if not self._is_layer(node):
            return None
        weight, added = outputs_of(node), bias(node)
        path = _Path(weight.channels, _image_rank(node), [weight])
        return path if added is None or self._takes(path, PerChannel(node, 2, -1)) else None

    def _ends(self, path: _Path, node: gs.Node) -> bool:
        """Return whether the node is a layer that reads the channels as its inputs."""
        if not self._is_layer(node) or node.attrs.get("transA", 0) or path.rank != _image_rank(node):
            return False
        repeat, rest = divmod(inputs_of(node).channels, path.channels)
        is_row = path.layout is None or rows(path.layout) is not None
        return is_row and not rest and (repeat == 1 or path.is_flattened)

    def _next(self, path: _Path, uses: Sequence[tuple[gs.Node, int]], moves: bool) -> gs.Tensor | None:
        """Return what the one node that reads a tensor makes of it, None if factors cannot pass that."""
        node, index = uses[0]
        if len(uses) > 1 or not self._is_known(node):
            return None
        passes = self._passes(path, node, index) or (moves and _moves(path, node, index))
        return node.outputs[0] if passes else None

    def _passes(self, path: _Path, node: gs.Node, index: int) -> bool:
        """Return whether the node commutes with a factor for each channel, and note constants to scale."""
        others = [i for i in range(len(node.inputs)) if i != index]
        if node.op in _WITH_CONSTANT:
            axis = -1 if path.rank is None else 1 - path.rank
            return len(others) == 1 and self._takes(path, PerChannel(node, others[0], axis))
        if node.op == "Flatten" and path.rank is not None and node.attrs.get("axis", 1) == 1:
            path.rank, path.is_flattened = None, True
            return True
        is_homogeneous = node.op in _HOMOGENEOUS and all(walk.is_given(node.inputs[i]) for i in others)
        return index == 0 and (is_homogeneous or (node.op in _POOLS and path.rank is not None))

    def _takes(self, path: _Path, held: PerChannel) -> bool:
        """Return whether a constant beside the channels can be scaled with them, and note it."""
        tensor = held.constant
        if path.layout is not None or path.is_flattened or not self._is_own(tensor):
            return False
        if (path.rank and len(tensor.shape) > path.rank) or held.channels not in (1, path.channels):
            return False
        if held.is_offset and masks_in(tensor.values).any():
            return False
        path.producing.append(held)
        return True

    def _behind_gate(self, path: _Path, uses: Sequence[tuple[gs.Node, int]]) -> gs.Tensor | None:
        """Return the product of a tensor and a bounded function of it, and note the gate that makes that."""
        by_op = {node.op: node for node, _ in uses if self._is_known(node)}
        gate = next((by_op[op] for op in _GATES if op in by_op), None)
        if path.gate is not None or gate is None:
            return None
        path.gate, factor = gate, gate.outputs[0]
        if gate.op == "HardSwish":
            return factor if len(uses) == 1 else None
        is_own = walk.is_read_once(factor) and id(factor) not in self._fixed
        if len(uses) != 2 or "Mul" not in by_op or not is_own:
            return None
        product = by_op["Mul"]
        return product.outputs[0] if any(tensor is factor for tensor in product.inputs) else None

    def _is_layer(self, node: gs.Node) -> bool:
        if node in self._exclude or not has_weight(node, self._fixed):
            return False
        weight = node.inputs[1]
        return walk.is_read_once(weight) and (node.op in CONVOLUTIONS or len(weight.shape) == 2)

    def _is_known(self, node: gs.Node) -> bool:
        return node not in self._exclude and node.domain in STANDARD_DOMAINS

    def _is_own(self, tensor: gs.Tensor) -> bool:
        return is_stored(tensor, self._fixed) and walk.is_read_once(tensor)


def _moves(path: _Path, node: gs.Node, index: int) -> bool:
    """Return whether the node moves channels, and note where they lie then."""
    if path.rank is not None or path.is_flattened:
        return False
    layout = layout_of(path.tensors[-1], path.channels) if path.layout is None else path.layout
    path.layout = None if layout is None else moved(node, index, layout)
    return path.layout is not None


def _image_rank(node: gs.Node) -> int | None:
    """Return the rank of the images that a convolution makes; None for rows of features."""
    return len(node.inputs[1].shape) if node.op in CONVOLUTIONS else None


def _layers_before(tensor: gs.Tensor) -> Iterator[gs.Node]:
    """Yield the layers with constant weights of whose results a tensor is made without another layer."""
    between = _HOMOGENEOUS | _WITH_CONSTANT | MOVING
    passed = walk.makers([tensor], lambda node: node.op in between and not has_weight(node))
    for one in (tensor, *(read for node in passed.values() for read in node.inputs)):
        producer = walk.producer(one)
        if producer is not None and has_weight(producer):
            yield producer
