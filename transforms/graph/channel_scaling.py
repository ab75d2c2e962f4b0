"""Finding layers whose channels can be scaled against each other without changing the model."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import bias, is_dot_product
from transforms.graph.lazy_values import Weight, become_constant, derived
from transforms.graph.rewire import STANDARD_DOMAINS

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_WITH_CONSTANT = frozenset({"Add", "Min", "Max"})


@dataclass
class _Way:
    """A tensor on the path from a layer: its channels, and their axis counted from the end.

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
    Every tensor in between has one reader and is not an output; every constant to be scaled is float32 and
    has no other user.
    """

    def __init__(self, model: gs.Graph, exclude: Container[gs.Node] = ()) -> None:
        """Note the tensors that must not change in any graph: inputs, outputs, and nodes in ``exclude``."""
        self._fixed = {id(t) for inner in walk.graphs(model) for t in (*inner.inputs, *inner.outputs)}
        self._exclude = exclude

    def pairs(self, graph: gs.Graph) -> list[LayerPair]:
        """Return the pairs in the order of their first layers; a layer of two pairs is one object."""
        layers: dict[int, ScaledLayer] = {}
        members = {id(node) for node in graph.nodes}
        found = []
        for node in graph.nodes:
            way, end = self._follow(node, members)
            if way is not None and end is not None:
                first, second = (layers.setdefault(id(n), ScaledLayer(n)) for n in (node, end))
                repeat = len(second.in_shift) // way.channels
                found.append(LayerPair(first, second, repeat, way.companions))
        return found

    def _follow(self, node: gs.Node, members: set[int]) -> tuple[_Way | None, gs.Node | None]:
        """Return the path from a layer to the one that reads it, and that one, or None if there is none."""
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
        return own and dtypes.is_type(tensor, dtypes.FLOAT) and walk.is_read_once(tensor)


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


Exponents = NDArray[np.int64]
Ranges = NDArray[np.float64]


class ScaledLayer:
    """A dot product whose second operand is a constant weight of its own.

    ``out_shift`` and ``in_shift`` hold exponents of two, one per channel of the whole layer: results are
    divided by the one, and inputs are expected to be divided by the other. The weight changes only in
    :meth:`apply`.
    """

    def __init__(self, node: gs.Node) -> None:
        """Measure the weight of the node."""
        self.weight: gs.Constant = node.inputs[1]
        self._op, self._is_transposed = node.op, bool(node.attrs.get("transB", 0))
        self._groups = int(node.attrs.get("group", 1))
        view = self._channels(self.weight.values)
        self._magnitudes: Ranges = np.abs(view).max(axis=3, initial=0).astype(np.float64)
        groups, outputs, inputs = self._magnitudes.shape
        self.out_shift: Exponents = np.zeros(groups * outputs, np.int64)
        self.in_shift: Exponents = np.zeros(groups * inputs, np.int64)

    def out_ranges(self) -> Ranges:
        """Return the largest magnitude of the weights of each output channel, with the shifts."""
        shifted = np.ldexp(self._magnitudes, self._by_input(self.in_shift))
        return np.ldexp(shifted.max(axis=2, initial=0).reshape(-1), -self.out_shift)

    def in_ranges(self) -> Ranges:
        """Return the largest magnitude of the weights of each input channel, with the shifts."""
        shifted = np.ldexp(self._magnitudes, -self._by_output(self.out_shift))
        return np.ldexp(shifted.max(axis=1, initial=0).reshape(-1), self.in_shift)

    def apply(self) -> None:
        """Scale the weight by the shifts."""
        shift = self._by_input(self.in_shift) - self._by_output(self.out_shift)
        if shift.any():
            source: Weight = self.weight._values
            become_constant(
                self.weight, derived(source, lambda values: self._scaled(values, shift), np.float32)
            )

    def _scaled(self, values: NDArray[np.float32], shift: Exponents) -> NDArray[np.float32]:
        values = np.array(values)
        view = self._channels(values)
        np.ldexp(view, shift[..., None], out=view)
        return values

    def _channels(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the weight as a view ``[groups, outputs of a group, inputs of a group, taps]``.

        The matrices of a MatMul's weight of more than two axes are its taps.
        """
        if self._op == "Conv":
            return values.reshape(self._groups, -1, values.shape[1], int(np.prod(values.shape[2:])))
        if self._op == "ConvTranspose":
            taps = int(np.prod(values.shape[2:]))
            return values.reshape(self._groups, -1, values.shape[1], taps).swapaxes(1, 2)
        matrices = values.reshape(-1, *values.shape[-2:])
        return matrices.transpose(1, 2, 0)[None] if self._is_transposed else matrices.T[None]

    def _by_input(self, shift: Exponents) -> Exponents:
        return shift.reshape(self._groups, 1, -1)

    def _by_output(self, shift: Exponents) -> Exponents:
        return shift.reshape(self._groups, -1, 1)


@dataclass(frozen=True)
class Companion:
    """A constant that is added to a scaled tensor, or bounds it, and has to be scaled with it.

    ``axis`` is that of the channels, counted from the end.
    """

    tensor: gs.Constant
    axis: int
    is_offset: bool

    def fits(self, channels: int) -> bool:
        """Return whether there is a number for each channel, or one for all."""
        return self._aligned().shape[self.axis] in (1, channels)

    def magnitudes(self) -> Ranges:
        """Return the largest magnitude for each channel, or one for all."""
        values = np.moveaxis(np.abs(self._aligned()), self.axis, 0)
        return values.reshape(len(values), -1).max(axis=1, initial=0).astype(np.float64)

    def apply(self, shift: Exponents) -> None:
        """Divide by two to the power of the shift of each channel."""
        if shift.any():
            self.tensor.values = np.ldexp(self._aligned(), -shift.reshape(-1, *(1,) * (-self.axis - 1)))

    def _aligned(self) -> NDArray[np.float32]:
        values = self.tensor.values
        return values.reshape((1,) * (-self.axis - values.ndim) + values.shape)


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
