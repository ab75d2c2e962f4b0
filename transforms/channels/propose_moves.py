"""Which outlying channels of each tensor are moved, by the estimated error of the layers that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array, Float64Array
from ops.rotations import rotate
from transforms.channels.layer_error import Halves, LayerWeights, Rows, total_error
from transforms.channels.left_operands import channels_of, layers_on, rows_of
from transforms.channels.move_outliers import FactorTakers
from transforms.channels.rotate_channels import HeadFinder, Heads
from transforms.graph import walk
from transforms.graph.selection import Exclusion, resolve
from transforms.plan.quant_spec import ACTIVATION, WEIGHT, QuantSite, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme.outlier_move import OutlierMove

_MOST_BITS = 8  # of activations: with more, one channel may set the range of all others
_LEAST_CHANNELS = 8
_LEAST_ROWS = 32  # of either half
_LOWERED = (1, 2, 3, 4)  # powers of two by which the range of a tensor may shrink
_SPLIT = (1, 2, 4, 8, 16)  # channels that may get products of their own
_TINY = float(np.finfo(np.float32).tiny)
_SIMILAR = 10**0.05  # errors that differ by half a dB: the move that costs less will do
_OUTLYING = 8.0  # a peak over the root mean square; rotated numbers are at about 4.5
_LEAST_GAIN = 10**-0.1  # what is left of the error if a move is worth its nodes: 1 dB


@dataclass(frozen=True)
class Operand:
    """A computed tensor, the layers that multiply it with constant weights, and the grids of both.

    ``may_split``: whether products of single channels and their sum bring no further rounding into the model.
    ``heads``: the channels that may be rotated with each other.
    """

    tensor: gs.Tensor
    layers: tuple[gs.Node, ...]
    grid: QuantSpec
    weight_grids: tuple[QuantSpec, ...]
    may_split: bool
    heads: Heads | None = None

    @cached_property
    def weights(self) -> list[LayerWeights]:
        """What errors depend on of the layers' weights, which must not change while moves are looked for."""
        return [LayerWeights.of(*pair) for pair in zip(self._rows(), self.weight_grids, strict=True)]

    @cached_property
    def rotated_weights(self) -> list[LayerWeights]:
        """The same of rotated heads."""
        rotated = (self.rotated(rows.T).T for rows in self._rows())
        return [LayerWeights.of(*pair) for pair in zip(rotated, self.weight_grids, strict=True)]

    def _rows(self) -> list[Float32Array]:
        return [np.asarray(rows_of(node, node.inputs[1].values), np.float32) for node in self.layers]

    def rotated(self, rows: Float32Array) -> Float32Array:
        """Return rows of the tensor with the channels of each head rotated."""
        assert self.heads is not None
        found, heads = rows.copy(), self.heads.channels
        found[:, heads] = rotate(found[:, heads].astype(np.float64))
        return found


def find_operands(plan: QuantizationPlan, *, exclude: Exclusion = None) -> list[Operand]:
    """Return the operands of a plan, in the order of first use, that are integers of up to 8 bits.

    All layers that multiply the tensor are among them. Left out are inputs of the model, and tensors made in
    integers: dividing their channels would be one more layer of integers, on the range that was to be
    avoided. Channels are not rotated in nodes in ``exclude``.
    """
    zone, takers = plan.specs.integers.zone, FactorTakers(plan.graph)
    heads = HeadFinder(plan.graph, resolve(exclude, plan.graph)).heads(plan.graph)
    return [one for site in plan.quantizations for one in _operands(plan, site, zone, takers, heads)]


def _operands(
    plan: QuantizationPlan, site: QuantSite, zone: set[int], takers: FactorTakers, heads: dict[int, Heads]
) -> Iterator[Operand]:
    grid, tensor = site.steps[-1], site.tensor
    coarse = grid.format.is_integer and grid.format.bits <= _MOST_BITS and len(site.steps) == 1
    if site.role != ACTIVATION or not coarse or not plan.specs.is_in_main_graph(tensor) or not tensor.shape:
        return
    if walk.producer(tensor) is None:
        return
    layers = layers_on(tensor)
    reads = {(id(node), index) for node, index in site.uses}
    if not layers or not all((id(node), 0) in reads for node in layers):
        return
    weights = [plan.specs.of_input(node, 1) for node in layers]
    grids = tuple(spec for spec, role in weights if spec and role == WEIGHT and spec.format.is_integer)
    if len(grids) < len(layers) or channels_of(layers[0]) < _LEAST_CHANNELS:
        return
    is_float = plan.specs.integers.maker(tensor) is None
    if is_float or takers.take(tensor, len(layers)):
        may_split = is_float and all(_ends_in_float(plan, node, zone) for node in layers)
        yield Operand(tensor, tuple(layers), grid, grids, may_split, heads.get(id(tensor)))


def _ends_in_float(plan: QuantizationPlan, node: gs.Node, zone: set[int]) -> bool:
    """Return whether another product can be added to that of a layer without being rounded."""
    result, formats = node.outputs[0], plan.specs.formats
    users = [user for user, _ in walk.uses(result)]
    if walk.is_output(result, plan.graph) or not users or node.attrs.get("alpha", 1.0) != 1:
        return False
    return formats[node] == formats.default and all(user.op == "Add" and id(user) in zone for user in users)


def propose_moves(
    operands: Sequence[Operand], rows: Mapping[str, Sequence[Float32Array]], *, clips: bool
) -> dict[str, OutlierMove]:
    """Return the moves, by the name of a tensor, that make the errors of its layers at least 1 dB smaller.

    They are those of a scheme's ``outliers``, written with ``str``; :func:`transforms.move_outliers` applies
    them. ``operands``: of a plan of the prepared float graph. ``rows``: for each operand's tensor, some rows
    [rows, channels] of each sample, as the float model makes them. Each move is made of every other sample
    and judged on the others, in turn; tensors of fewer than two samples or 32 rows in a half are left alone.
    ``clips``: whether ranges of activations cut rare numbers off.
    """
    found = {}
    for operand in operands:
        samples = rows[operand.tensor.name]
        halves = [np.concatenate(samples[half::2]) for half in range(2)] if len(samples) > 1 else []
        if halves and all(len(half) >= _LEAST_ROWS and np.isfinite(half).all() for half in halves):
            move = _choose(operand, halves, clips=clips)
            if move is not None:
                found[str(operand.tensor.name)] = move
    return found


def _choose(operand: Operand, halves: Sequence[Float32Array], *, clips: bool) -> OutlierMove | None:
    """Return the move of the least error; within half a dB the first that adds no products or rotations."""
    both = np.concatenate(halves)
    rotates = operand.heads is not None and _is_outlying(both)
    plain = Rows(halves[0]), Rows(halves[1])
    rotated = (Rows(operand.rotated(halves[0])), Rows(operand.rotated(halves[1]))) if rotates else plain

    def _error(proposed: Sequence[OutlierMove]) -> float:
        is_rotated = proposed[0].rotated
        weights = operand.rotated_weights if is_rotated else operand.weights
        seen: Halves = rotated if is_rotated else plain
        errors = (
            total_error(move, rows, weights, operand.grid, clips=clips)
            for move, rows in zip(proposed, (seen, seen[::-1]), strict=True)
        )
        return sum(errors) * (_SIMILAR if is_rotated else 1)  # exponents change no bit

    of_halves = [_candidates(operand, half, rotates=rotates) for half in halves]
    unmoved, *errors = [_error(proposed) for proposed in zip(*of_halves, strict=True)]
    moves, best = _candidates(operand, both, rotates=rotates)[1:], min(errors)
    shares = [_SIMILAR if move.own or move.rotated else 1 for move in moves]
    found = next(m for m, error, share in zip(moves, errors, shares, strict=True) if error <= share * best)
    return found if best < _LEAST_GAIN * unmoved and str(found) else None


def _is_outlying(rows: Float32Array) -> bool:
    """Return whether the largest of some numbers is far above their root mean square."""
    with np.errstate(all="ignore"):
        mean = np.mean(np.square(rows, dtype=np.float64))
        return bool(np.abs(rows).max(initial=0) > _OUTLYING * np.sqrt(mean))


def _candidates(operand: Operand, rows: Float32Array, *, rotates: bool) -> list[OutlierMove]:
    """Return no move, and as many others for any rows: outliers lowered, spread, or with products of their
    own.
    """
    return [OutlierMove(), *_each_move(operand, np.abs(rows).max(0).astype(np.float64), rotates)]


def _each_move(operand: Operand, ranges: Float64Array, rotates: bool) -> Iterator[OutlierMove]:
    largest = float(ranges.max())
    for power in _LOWERED:
        limit = max(largest * 2.0**-power, _TINY)
        exponents = np.rint(np.log2(np.maximum(ranges / limit, 1))).astype(int)
        yield OutlierMove({int(i): int(exponents[i]) for i in np.flatnonzero(exponents)})
    if rotates:
        yield OutlierMove(rotated=True)
    if operand.may_split:
        order = np.argsort(-ranges, kind="stable")
        for count in (count for count in _SPLIT if 4 * count <= len(ranges)):
            yield OutlierMove(own=tuple(sorted(map(int, order[:count]))))
