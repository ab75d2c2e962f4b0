"""What the rounding of one layer's operands does, summed over samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dot_products
from transforms.graph.lazy_values import Computed
from transforms.layers.linear_layer import LinearLayer, UnsupportedLayer, layer_of
from transforms.mix_precision.weight_parts import WeightPart, weight_parts
from transforms.plan.fake_quant import FakeQuant

Arrays = Mapping[str, NDArray[np.float32]]
Roundings = Mapping[int, FakeQuant]

Sample = tuple[Arrays, Sequence[Arrays]]
"""Operands by name, and of each draw gradients of edges and output by name, empty where they are zero."""

_NOTHING = np.zeros(0, np.float32)
_START = ""  # the label of formats before a layer is moved


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
        plain: Roundings,
        moved: Mapping[str, Roundings],
    ) -> None:
        """Start with no sample."""
        self.output, self.operands = str(node.outputs[0].name), operands
        self._node, self._index = node, constant_operand(node)
        self._plain, self._moved = plain, moved
        self._squares = dict.fromkeys(moved, 0.0)
        self._power = 0.0
        self._layer: LinearLayer | None = None
        self._parts: list[WeightPart] = []
        if self._index is not None:
            self._layer = layer_of(node, tuple(node.inputs[self._index].shape), self._index)
            roundings = (found.get(self._index) for found in (plain, *moved.values()))
            self._parts = weight_parts(node, self._layer, filter(None, roundings))

    def add(self, samples: Sequence[Sample]) -> None:
        """Add samples; the weight is rounded in all formats for each call anew, in parts, and not kept.

        Where a gradient is missing, the output itself is among a sample's arrays.
        """
        if all(name in samples[0][1][0] for name in self.edges):
            self._add_by_gradients(samples)
        else:
            self._add_by_share(samples)

    @property
    def edges(self) -> list[str]:
        """The tensors whose gradients count: those that the layer alone reads, and what it makes."""
        return [*(operand.edge for operand in self.operands.values()), self.output]

    @property
    def weight_bytes(self) -> int:
        """What the weight takes in one format."""
        return 0 if self._index is None else 4 * math.prod(self._node.inputs[self._index].shape)

    @property
    def loaded_bytes(self) -> int:
        """What the weight takes while samples are added, unless it is in memory, or in a file as it is."""
        if self._index is None or not isinstance(self._node.inputs[self._index]._values, Computed):
            return 0
        return self.weight_bytes

    def harms(self, power: float) -> dict[str, float]:
        """Return the harm by label, ``power`` being the sum of squares of the model's outputs."""
        power = self._power or power
        shares = {
            label: squares / power if power else math.inf if squares else 0.0
            for label, squares in self._squares.items()
        }
        return {label: share if math.isfinite(share) else math.inf for label, share in shares.items()}

    def _each_part(self) -> Iterator[tuple[WeightPart, NDArray[np.float32], Arrays]]:
        """Yield the parts of the weight, rounded as before the layer is moved, and by how much formats change
        it, by the labels of those that do."""
        if self._index is None:
            return
        weight = self._node.inputs[self._index].values
        for part in self._parts:
            values = part.of(weight)
            plain, *moved = (
                part.rounding(found.get(self._index)) for found in (self._plain, *self._moved.values())
            )
            start = values if plain is None else plain(values)
            errors = (
                (label, _error(found, values, start)) for label, found in zip(self._moved, moved, strict=True)
            )
            yield part, start, {label: error for label, error in errors if error.any()}

    def _add_by_gradients(self, samples: Sequence[Sample]) -> None:
        reached = [self._operand_changes(*sample) for sample in samples]
        for part, _, errors in self._each_part():
            if not errors:
                continue
            for sample, changes in zip(samples, reached, strict=True):
                for draw, slope in enumerate(self._weight_slopes(part, *sample)):
                    for label, error in errors.items():
                        changes[label][draw] += _dot(slope, error)
        for changes in reached:
            for label, change in changes.items():
                self._squares[label] += float(change @ change)

    def _operand_changes(self, arrays: Arrays, draws: Sequence[Arrays]) -> dict[str, NDArray[np.float64]]:
        """Return what errors of computed operands do to the signed outputs of each draw, by label."""
        reached = {label: np.zeros(len(draws)) for label in self._moved}
        for index, operand in self.operands.items():
            values, slopes = arrays[operand.name], [gradients[operand.edge] for gradients in draws]
            start = self._plain.get(index, _as_it_is)(values)
            for label, found in self._moved.items():
                error = _error(found.get(index), values, start)
                reached[label] += [_dot(slope, error) for slope in slopes]
        return reached

    def _weight_slopes(
        self, part: WeightPart, arrays: Arrays, draws: Sequence[Arrays]
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the gradient of a part of the weight for each draw, of its shape, from that of the output."""
        assert self._layer is not None
        (operand,) = self.operands.values()
        rows = None
        for gradients in draws:
            slope = gradients[self.output]
            if not slope.size:
                yield _NOTHING
                continue
            rows = self._layer.rows(arrays[operand.name], slope.shape) if rows is None else rows
            made = part.outputs(self._layer.outputs(slope))
            yield np.asarray(part.layer.weight_slope(rows, made), np.float32)

    def _add_by_share(self, samples: Sequence[Sample]) -> None:
        """Add squared errors of what the layer makes, and the power of that, once for each draw."""
        if self._layer is None and self._node.op != "MatMul":
            self._squares = dict.fromkeys(self._squares, math.inf)  # nothing is known: the last to be tried
            return
        if self._layer is None:
            for arrays, draws in samples:
                self._add_shares(partial(self._product, arrays), len(draws))
        for part, start, errors in self._each_part():
            packed = {_START: _packed(part, start)}
            packed |= {label: packed[_START] + _packed(part, error) for label, error in errors.items()}
            for arrays, draws in samples:
                self._add_shares(partial(self._outputs, arrays, packed), len(draws))

    def _add_shares(self, make: Callable[[str, Roundings], NDArray[np.float32]], draws: int) -> None:
        plain = make(_START, self._plain)
        self._power += draws * _dot(plain, plain)
        for label, found in self._moved.items():
            error = make(label, found) - plain
            self._squares[label] += draws * _dot(error, error)

    def _product(self, arrays: Arrays, label: str, found: Roundings) -> NDArray[np.float32]:
        """Return what a product of computed operands is with these rounded."""
        return np.asarray(np.matmul(*self._read(arrays, found)), np.float32)

    def _outputs(self, arrays: Arrays, weights: Arrays, label: str, found: Roundings) -> NDArray[np.float32]:
        """Return some rows of what the layer makes, with the operand rounded and the weight [G, N, K] of a
        label, that at the start if the format leaves it there."""
        assert self._layer is not None
        rows = self._layer.rows(self._read(arrays, found)[0], arrays[self.output].shape)
        step = -(-rows.shape[1] // _MOST_ROWS)
        weight = weights.get(label, weights[_START])
        return np.asarray(rows[:, ::step] @ weight.transpose(0, 2, 1), np.float32)

    def _read(self, arrays: Arrays, found: Roundings) -> list[NDArray[np.float32]]:
        return [found.get(i, _as_it_is)(arrays[one.name]) for i, one in self.operands.items()]


def _packed(part: WeightPart, weight: NDArray[np.float32]) -> NDArray[np.float32]:
    packed = part.layer.pack(weight)
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
