"""Finding layers whose channels can be scaled against each other without changing the model."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import bias, is_dot_product
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.scaled_layers import Companion, Layer, Pair

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_WITH_CONSTANT = frozenset({"Add", "Min", "Max"})


@dataclass
class _Way:
    """What is known of a tensor on the way from a layer: its channels, and their axis counted from the end.

    ``rank`` is that of images, None for rows of features.
    """

    channels: int
    rank: int | None
    is_flattened: bool = False
    companions: list[Companion] = field(default_factory=list)

    @property
    def axis(self) -> int:
        """The axis of the channels, counted from the end."""
        return -1 if self.rank is None else 1 - self.rank


class PairFinder:
    """Finds the pairs of a graph, without those of graphs nested in it.

    Between the two layers of a pair lie only operators that commute with a positive factor for each channel:
    Relu, LeakyRelu, PRelu, pooling, Flatten, and sums with and bounds by constants, which are scaled as well.
    Every tensor in between has one reader and is no output, and every constant to be scaled is float32 and
    has no other user.
    """

    def __init__(self, model: gs.Graph, exclude: Container[gs.Node] = ()) -> None:
        """Note what may not be changed in any graph: inputs, outputs, and nodes in ``exclude``."""
        self._fixed = {id(t) for inner in walk.graphs(model) for t in (*inner.inputs, *inner.outputs)}
        self._exclude = exclude

    def pairs(self, graph: gs.Graph) -> list[Pair]:
        """Return the pairs in the order of their first layers; a layer of two pairs is one object."""
        layers: dict[int, Layer] = {}
        members = {id(node) for node in graph.nodes}
        found = []
        for node in graph.nodes:
            way, end = self._follow(node, members)
            if way is not None and end is not None:
                first, second = (layers.setdefault(id(n), Layer(n)) for n in (node, end))
                repeat = len(second.in_shift) // way.channels
                found.append(Pair(first, second, repeat, way.companions))
        return found

    def _follow(self, node: gs.Node, members: set[int]) -> tuple[_Way | None, gs.Node | None]:
        """Return the way from a layer to the one that reads it, and that one; None where there is none."""
        way = self._start(node)
        while way is not None:
            tensor = node.outputs[0]
            uses = walk.uses(tensor)
            if len(uses) != 1 or id(tensor) in self._fixed or id(uses[0][0]) not in members:
                break
            node, index = uses[0]
            if index == 0 and self._ends(way, node):
                return way, node
            if not self._passes(way, node, index):
                break
        return None, None

    def _start(self, node: gs.Node) -> _Way | None:
        if not self._is_layer(node):
            return None
        shape = node.inputs[1].shape
        way = _Way(_outputs(node), len(shape) if node.op in _CONVOLUTIONS else None)
        added = bias(node)
        return way if added is None or self._takes(way, added, -1, is_offset=True) else None

    def _ends(self, way: _Way, node: gs.Node) -> bool:
        """Return whether the node is a layer that reads the channels as its inputs."""
        if not self._is_layer(node) or node.attrs.get("transA", 0):
            return False
        if node.op in _CONVOLUTIONS:
            return way.rank == len(node.inputs[1].shape) and way.channels == _inputs(node)
        return (
            way.rank is None
            and _inputs(node) % way.channels == 0
            and (way.is_flattened or _inputs(node) == way.channels)
        )

    def _passes(self, way: _Way, node: gs.Node, index: int) -> bool:
        """Return whether a factor for each channel goes through the node, and note what it meets there."""
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

    def _takes(self, way: _Way, tensor: gs.Tensor, axis: int, *, is_offset: bool) -> bool:
        if not self._is_own(tensor) or way.is_flattened or (way.rank and len(tensor.shape) > way.rank):
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
        return 0 not in shape and (node.op in _CONVOLUTIONS or len(shape) == 2)

    def _is_own(self, tensor: gs.Tensor) -> bool:
        own = isinstance(tensor, gs.Constant) and id(tensor) not in self._fixed
        return own and dtypes.is_type(tensor, dtypes.FLOAT) and len(walk.uses(tensor)) == 1


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
