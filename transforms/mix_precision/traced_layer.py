"""What the rounding of one layer's operands does, summed over samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dot_products
from transforms.layers.linear_layer import LinearLayer, UnsupportedLayer, layer_of
from transforms.plan.fake_quant import FakeQuant

Arrays = Mapping[str, NDArray[np.float32]]

Sample = tuple[Arrays, Sequence[Arrays]]
"""Operands by name, and of each draw gradients of edges and output by name, empty where they are zero."""

_NOTHING = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Operand:
    """A computed operand: the name of the tensor, and the one by which this layer alone has its gradient."""

    name: str
    edge: str


_MOST_ROWS = 512
"""Rows of one sample on which errors are looked at where there is no gradient."""


class TracedLayer:
    """A dot product with a constant weight, or with two computed operands, in several formats.

    ``operands``: those that are computed, by input. ``plain``: what is done to the operands, by input,
    before a layer is moved; ``moved``: the same by label of other formats.
    """

    def __init__(
        self,
        node: gs.Node,
        operands: Mapping[int, Operand],
        plain: Mapping[int, FakeQuant],
        moved: Mapping[str, Mapping[int, FakeQuant]],
    ) -> None:
        """Start with no sample."""
        self.output, self.operands = str(node.outputs[0].name), operands
        self._node, self._index = node, constant_operand(node)
        self._plain, self._moved = plain, moved
        self._squares = dict.fromkeys(moved, 0.0)
        self._power = 0.0
        self._layer: LinearLayer | None = None
        if self._index is not None:
            self._layer = layer_of(node, tuple(node.inputs[self._index].shape), self._index)

    def add(self, samples: Sequence[Sample]) -> None:
        """Add samples; the weight is rounded in all formats for each call anew, and not kept.

        Where a gradient is missing, the output itself is among a sample's arrays.
        """
        deltas = self._weight_errors()
        for arrays, draws in samples:
            if all(name in draws[0] for name in self.edges):
                self._add_by_gradients(arrays, draws, deltas)
            else:
                for _ in draws:
                    self._add_by_share(arrays, deltas)

    @property
    def edges(self) -> list[str]:
        """The tensors whose gradients count: those that the layer alone reads, and what it makes."""
        return [*(operand.edge for operand in self.operands.values()), self.output]

    @property
    def weight_bytes(self) -> int:
        """What the weight takes in one format."""
        return 0 if self._index is None else 4 * math.prod(self._node.inputs[self._index].shape)

    def harms(self, power: float) -> dict[str, float]:
        """Return the harm by label, ``power`` being the sum of squares of the model's outputs."""
        power = self._power or power
        shares = {
            label: squares / power if power else math.inf if squares else 0.0
            for label, squares in self._squares.items()
        }
        return {label: share if math.isfinite(share) else math.inf for label, share in shares.items()}

    def _weight_errors(self) -> Arrays:
        """Return by how much formats change the weight, of its shape, by the labels of those that do."""
        if self._index is None:
            return {}
        weight, start = self._start(self._index)
        errors = {
            label: _error(found.get(self._index), weight, start) for label, found in self._moved.items()
        }
        return {label: error for label, error in errors.items() if error.any()}

    def _start(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the weight, and what it is rounded to before the layer is moved."""
        weight = np.asarray(self._node.inputs[index].values, np.float32)
        return weight, self._plain.get(index, _as_it_is)(weight)

    @cached_property
    def _weight(self) -> NDArray[np.float32] | None:
        """The weight before the layer is moved, [G, N, K]."""
        return None if self._index is None else self._pack(self._start(self._index)[1])

    def _add_by_gradients(self, arrays: Arrays, draws: Sequence[Arrays], deltas: Arrays) -> None:
        reached = {label: np.zeros(len(draws)) for label in self._moved}
        for index, operand in self.operands.items():
            values, slopes = arrays[operand.name], [gradients[operand.edge] for gradients in draws]
            start = self._plain.get(index, _as_it_is)(values)
            for label, found in self._moved.items():
                error = _error(found.get(index), values, start)
                reached[label] += [_dot(slope, error) for slope in slopes]
        if deltas:
            slopes = self._weight_slopes(arrays, [gradients[self.output] for gradients in draws])
            for label, delta in deltas.items():
                reached[label] += [_dot(slope, delta) for slope in slopes]
        for label, changes in reached.items():
            self._squares[label] += float(changes @ changes)

    def _weight_slopes(
        self, arrays: Arrays, slopes: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """Return gradients of the weight, of its shape, from those of the output."""
        if not slopes[0].size:
            return [_NOTHING] * len(slopes)
        assert self._layer is not None
        (operand,) = self.operands.values()
        rows = self._layer.rows(arrays[operand.name], slopes[0].shape)
        outputs = map(self._layer.outputs, slopes)
        return [np.asarray(self._layer.weight_slope(rows, made), np.float32) for made in outputs]

    def _add_by_share(self, arrays: Arrays, deltas: Arrays) -> None:
        """Add squared errors of what the layer makes, and the power of that."""
        if self._layer is None and self._node.op != "MatMul":
            self._squares = dict.fromkeys(self._squares, math.inf)  # nothing is known: the last to be tried
            return
        plain = self._make(arrays, self._plain)
        self._power += _dot(plain, plain)
        for label, found in self._moved.items():
            error = self._make(arrays, found, deltas.get(label)) - plain
            self._squares[label] += _dot(error, error)

    def _make(
        self, arrays: Arrays, found: Mapping[int, FakeQuant], delta: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return what the layer makes, some rows of it, with its operands rounded."""
        read = [found.get(i, _as_it_is)(arrays[one.name]) for i, one in self.operands.items()]
        if self._layer is None or self._weight is None:
            return np.asarray(np.matmul(*read), np.float32)
        rows = self._layer.rows(read[0], arrays[self.output].shape)
        step = -(-rows.shape[1] // _MOST_ROWS)
        weight = self._weight if delta is None else self._weight + self._pack(delta)
        return np.asarray(rows[:, ::step] @ weight.transpose(0, 2, 1), np.float32)

    def _pack(self, weight: NDArray[np.float32]) -> NDArray[np.float32]:
        assert self._layer is not None
        packed = self._layer.pack(weight)
        return np.ascontiguousarray(packed.reshape(*packed.shape[:2], -1))


def constant_operand(node: gs.Node) -> int | None:
    """Return which operand of a dot product is a weight that its sums can be written with; None without."""
    index = dot_products.weight_index(node)
    if index is None:
        return None
    try:
        layer_of(node, tuple(node.inputs[index].shape), index)
    except UnsupportedLayer:
        return None
    return index


def _as_it_is(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values


def _error(
    found: FakeQuant | None, values: NDArray[np.float32], start: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return by how much rounding takes values away from a start, without an array in between."""
    rounded = values if found is None else found(values)
    return np.subtract(rounded, start, out=None if rounded is values else rounded)


def _dot(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.vdot(a, b)) if a.size else 0.0
