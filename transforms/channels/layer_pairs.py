"""Finding layers whose channels can be scaled against each other without changing the model."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from transforms.channels.channel_layout import MOVING, Layout, moved, rows
from transforms.channels.scaled_layer import Companion, Exponents, ScaledLayer
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.dot_products import bias, is_dot_product
from transforms.graph.masks import masks_in
from transforms.graph.rewire import STANDARD_DOMAINS

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_WITH_CONSTANT = frozenset({"Add", "Min", "Max"})


@dataclass
class Way:
    """A tensor on the path from a layer: its channels, and their axis counted from the end.

    ``rank`` is that of images, None for rows of features; ``layout`` says where channels lie once they were
    moved.
    """

    channels: int
    rank: int | None
    is_flattened: bool = False
    companions: list[Companion] = field(default_factory=list)
    layout: Layout | None = None

    @property
    def axis(self) -> int:
        """The axis of the channels, counted from the end."""
        return -1 if self.rank is None else 1 - self.rank


class PairFinder:
    """Finds the pairs of a graph, without those of graphs nested in it.

    Between the two layers of a pair lie only operators that commute with a positive factor for each channel:
    Relu, LeakyRelu, PRelu, pooling, Flatten, and sums with and bounds by constants, which are scaled as well.
    Every tensor in between has one consumer and is not an output; every constant to be scaled is float32 and
    has no other user.
    """

    def __init__(self, model: gs.Graph, exclude: Container[gs.Node] = ()) -> None:
        """Note the tensors that must not change in any graph: inputs, outputs, and nodes in ``exclude``."""
        self._fixed = walk.ends(model)
        self._exclude = exclude

    def pairs(self, graph: gs.Graph) -> list[LayerPair]:
        """Return the pairs in the order of their first layers; a layer of two pairs is one object."""
        layers: dict[int, ScaledLayer] = {}
        members = {id(node) for node in graph.nodes}
        found = []
        for node in graph.nodes:
            if followed := self._follow(node, members):
                way, end = followed
                first, second = (layers.setdefault(id(n), ScaledLayer(n)) for n in (node, end))
                repeat = len(second.in_shift) // way.channels
                found.append(LayerPair(first, second, repeat, way.companions))
        return found

    def scales_input(self, graph: gs.Graph, end: gs.Node) -> Scaling | None:
        """Return what divides the channels that a layer reads in the layer that makes them, None if none can.

        In between, channels may also be moved, as attention does with heads: by what
        :mod:`transforms.channels.channel_layout` knows.
        """
        members = {id(node) for node in graph.nodes}
        for first in _layers_before(end):
            followed = self._follow(first, members, moves=True)
            if followed and followed[1] is end:
                way = followed[0]
                layout = np.arange(way.channels) if way.layout is None else rows(way.layout)
                if layout is not None and len(layout) == _inputs(end):
                    return Scaling(first, layout, way.companions)
        return None

    def _follow(self, node: gs.Node, members: set[int], *, moves: bool = False) -> tuple[Way, gs.Node] | None:
        """Return the path from a layer to the one that alone reads what becomes of its output, and that one.

        ``moves``: channels may be moved in between.
        """
        way, tensor = self._start(node), node.outputs[0]
        while way is not None:
            uses = walk.uses(tensor)
            if len(uses) != 1 or id(tensor) in self._fixed or id(uses[0][0]) not in members:
                return None
            node, index = uses[0]
            if index == 0 and self._ends(way, node):
                return way, node
            if not self._passes(way, node, index) and not (moves and self._moves(way, node, index)):
                return None
            tensor = node.outputs[0]
        return None

    def _moves(self, way: Way, node: gs.Node, index: int) -> bool:
        """Return whether the node moves channels, and note where they lie then."""
        if node in self._exclude or node.domain not in STANDARD_DOMAINS:
            return False
        if way.rank is not None or way.is_flattened:
            return False
        way.layout = moved(node, index, np.arange(way.channels) if way.layout is None else way.layout)
        return way.layout is not None

    def _start(self, node: gs.Node) -> Way | None:
        if not self._is_layer(node):
            return None
        shape = node.inputs[1].shape
        way = Way(_outputs(node), len(shape) if node.op in CONVOLUTIONS else None)
        added = bias(node)
        return way if added is None or self._takes(way, added, -1, is_offset=True) else None

    def _ends(self, way: Way, node: gs.Node) -> bool:
        """Return whether the node is a layer that reads the channels as its inputs."""
        if not self._is_layer(node) or node.attrs.get("transA", 0):
            return False
        if node.op in CONVOLUTIONS:
            return way.rank == len(node.inputs[1].shape) and way.channels == _inputs(node)
        if way.layout is not None:
            channels = rows(way.layout)
            return channels is not None and len(channels) == _inputs(node)
        return (
            way.rank is None
            and _inputs(node) % way.channels == 0
            and (way.is_flattened or _inputs(node) == way.channels)
        )

    def _passes(self, way: Way, node: gs.Node, index: int) -> bool:
        """Return whether the node commutes with a factor for each channel, and note constants to scale."""
        if node in self._exclude or node.domain not in STANDARD_DOMAINS:
            return False
        others = [tensor for i, tensor in enumerate(node.inputs) if i != index]
        if node.op in _WITH_CONSTANT:
            return len(others) == 1 and self._takes(way, others[0], way.axis, is_offset=node.op == "Add")
        if node.op == "Flatten" and way.rank is not None and node.attrs.get("axis", 1) == 1:
            way.rank, way.is_flattened = None, True
            return True
        homogeneous = node.op in _HOMOGENEOUS and all(
            isinstance(tensor, gs.Constant) or tensor.is_empty() for tensor in others
        )
        return index == 0 and (homogeneous or (node.op in _POOLS and way.rank is not None))

    def _takes(self, way: Way, tensor: gs.Tensor, axis: int, *, is_offset: bool) -> bool:
        if (
            way.layout is not None
            or not self._is_own(tensor)
            or way.is_flattened
            or (way.rank and len(tensor.shape) > way.rank)
        ):
            return False
        if is_offset and masks_in(load(tensor)).any():
            return False
        companion = Companion(tensor, axis, is_offset)
        if not companion.fits(way.channels):
            return False
        way.companions.append(companion)
        return True

    def _is_layer(self, node: gs.Node) -> bool:
        if not is_dot_product(node) or node in self._exclude or not self._is_own(node.inputs[1]):
            return False
        shape = node.inputs[1].shape
        return 0 not in shape and (node.op in CONVOLUTIONS or len(shape) == 2)

    def _is_own(self, tensor: gs.Tensor) -> bool:
        own = isinstance(tensor, gs.Constant) and id(tensor) not in self._fixed
        return own and dtypes.is_type(tensor, dtypes.FLOAT) and walk.is_read_once(tensor)


def _layers_before(node: gs.Node) -> Iterator[gs.Node]:
    """Yield the layers with constant weights whose results reach the input of a node by no other layer."""
    waiting, seen = [node.inputs[0]], set()
    while waiting:
        found = walk.producer(waiting.pop())
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if is_dot_product(found) and isinstance(found.inputs[1], gs.Constant):
            yield found
        elif found.op in _WITH_CONSTANT:
            computed = [tensor for tensor in found.inputs if not isinstance(tensor, gs.Constant)]
            waiting += computed if len(computed) == 1 else []
        elif found.op in _HOMOGENEOUS or found.op in MOVING:
            waiting += found.inputs


def _outputs(node: gs.Node) -> int:
    shape = node.inputs[1].shape
    if node.op == "ConvTranspose":
        return int(shape[1]) * int(node.attrs.get("group", 1))
    return int(shape[0] if node.op == "Conv" or node.attrs.get("transB", 0) else shape[1])


def _inputs(node: gs.Node) -> int:
    shape = node.inputs[1].shape
    if node.op == "Conv":
        return int(shape[1]) * int(node.attrs.get("group", 1))
    return int(shape[1] if node.attrs.get("transB", 0) else shape[0])


@dataclass(frozen=True)
class LayerPair:
    """Two layers, of which the second alone reads the output of the first.

    Each channel of the first is ``repeat`` consecutive inputs of the second.
    """

    first: ScaledLayer
    second: ScaledLayer
    repeat: int
    companions: list[Companion] = field(default_factory=list)

    def apply(self) -> None:
        """Scale the companions by the first layer's shifts."""
        for companion in self.companions:
            companion.apply(self.first.out_shift)


@dataclass(frozen=True)
class Scaling:
    """A layer that makes the channels another reads; ``channels`` [inputs of that] are those it makes."""

    first: gs.Node
    channels: Layout
    companions: list[Companion]

    def apply(self, exponents: Exponents) -> None:
        """Divide the input by two to the power of the exponent of each channel."""
        layer = ScaledLayer(self.first)
        layer.out_shift[self.channels] = exponents
        for companion in self.companions:
            companion.apply(layer.out_shift)
        layer.apply()
