"""Which outlying channels of each tensor are moved, by the estimated error of the layers that read it.

The error is that of rounding in a layer, estimated from some rows of its input, without multiplying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array, Float64Array
from ops.channel_sums import channel_sums
from ops.pair_sums import paired_scale
from transforms.channels.factors import as_move, lowered, smoothed
from transforms.channels.per_channel import Channels, inputs_of
from transforms.channels.product_sites import layers_on, product_site
from transforms.channels.rounding_errors import rounding_error
from transforms.channels.shared_weights import groups
from transforms.channels.sites import SiteFinder
from transforms.graph import walk
from transforms.plan.quant_spec import ACTIVATION, WEIGHT, QuantSite, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme.outlier_move import OutlierMove

_MOST_BITS = 8  # of activations: with more, one channel may set the range of all others
LEAST_CHANNELS = 8
_LEAST_ROWS = 32  # of either half
_LOWERED = (1, 2, 3, 4)  # powers of two by which the range of a tensor may shrink
_SMOOTHED = (0.5, 0.75)  # shares of the differences between channels that weights take
_SPLIT = (1, 2, 4, 8, 16)  # channels that may get products of their own
_TINY = float(np.finfo(np.float32).tiny)
_SIMILAR = 10**0.05  # errors that differ by half a dB: the move that costs less will do
_LEAST_GAIN = 10**-0.1  # what is left of the error if a move is worth its nodes: 1 dB
_CLIPPED = 0.7  # of the largest weight: about what one scale of least error for all channels covers

_COLUMNS = 1 << 13
"""Outputs of a layer that are looked at together."""


class LayerWeights:
    """What of a weight [channels, outputs] the errors depend on: its numbers, and the grid.

    ``norms``: sums of squares of each channel; ``ranges``: its largest magnitude.
    """

    def __init__(self, numbers: Float32Array, grid: QuantSpec) -> None:
        """Measure a weight."""
        self.numbers, self.grid = numbers, grid
        self.norms: Float64Array = np.einsum("ij,ij->i", numbers, numbers, dtype=np.float64)
        self.ranges = np.max([np.abs(part).max(1) for part in _parts(numbers)], axis=0)

    def error(self, squares: Float64Array, factors: Float64Array, own: Channels) -> float:
        """Return the mean squared error of what the layer makes that rounding the weight causes.

        ``squares``: mean squares of the channels before they are divided by ``factors``, which are 1 or more;
        ``own`` channels stay out of it. An error that is spread evenly over a step s has the mean square
        s^2 / 12.
        """
        by = factors.astype(np.float32)
        by[own] = 0
        parts = [self._largest(part * by[:, None]) for part in _parts(self.numbers)]
        largest = np.concatenate(parts).astype(np.float64)
        if self.grid.axis is None:
            largest = np.full_like(largest, _CLIPPED * largest.max())
        steps = largest / self.grid.format.highest
        kept = squares / factors**2
        kept[own] = 0
        return float(np.square(steps).sum() / 12 * kept.sum())

    def _largest(self, numbers: Float32Array) -> Float32Array:
        """Return the largest magnitude of each output, or of sums of neighbours if these give the scale."""
        largest = np.maximum(numbers.max(0, initial=0), -numbers.min(0, initial=0))
        if not self.grid.pairs:
            return largest
        highest = np.float32(self.grid.format.highest)
        return paired_scale(numbers, largest / highest, (0,), 1) * highest


def _parts(numbers: Float32Array) -> Iterator[Float32Array]:
    """Yield some outputs after others of a weight: that of a head may be most of a model's."""
    for first in range(0, numbers.shape[1], _COLUMNS):
        yield numbers[:, first : first + _COLUMNS]


@dataclass(frozen=True)
class Operand:
    """A computed tensor, the layers that multiply it with constant weights, and the grids of both.

    ``may_split``: whether products of single channels and their sum bring no further rounding into the model.
    ``row_error``: that of rows which have ranges of their own, by rows as they are rounded, norms of the
    weights' rows, and whether the tensor was changed; None for one range.
    """

    tensor: gs.Tensor
    layers: tuple[gs.Node, ...]
    grid: QuantSpec
    weight_grids: tuple[QuantSpec, ...]
    may_split: bool
    row_error: Callable[[Float32Array, Float64Array, bool], float] | None = None

    @cached_property
    def weights(self) -> list[LayerWeights]:
        """What errors depend on of the layers' weights, which must not change while moves are looked for."""
        pairs = zip(self.layers, self.weight_grids, strict=True)
        return [LayerWeights(inputs_of(node).rows(node.inputs[1].values), grid) for node, grid in pairs]


def find_operands(plan: QuantizationPlan) -> list[Operand]:
    """Return the operands of a plan, in the order of first use, that are integers of up to 8 bits.

    All layers that multiply the tensor are among them. Left out are inputs of the model, and tensors made in
    integers: dividing their channels would be one more layer of integers, on the range that was to be
    avoided.
    """
    finder = SiteFinder(plan.graph)
    found = [one for site in plan.quantizations for one in _operands(plan, site, finder)]
    return [*found, *(one for form in plan.specs.formats.at_run_time for one in form.operands(plan))]


def _operands(plan: QuantizationPlan, site: QuantSite, finder: SiteFinder) -> Iterator[Operand]:
    grid, tensor = site.steps[-1], site.tensor
    coarse = grid.format.is_integer and grid.format.bits <= _MOST_BITS and len(site.steps) == 1
    if site.role != ACTIVATION or not coarse or not plan.specs.is_in_main_graph(tensor) or not tensor.shape:
        return
    layers = [] if walk.producer(tensor) is None else layers_on(tensor)
    reads = {(id(node), index) for node, index in site.uses}
    if not layers or not all((id(node), 0) in reads for node in layers):
        return
    grids = weight_grids(plan, layers)
    if len(grids) < len(layers) or inputs_of(layers[0]).channels < LEAST_CHANNELS:
        return
    is_float = plan.specs.integers.maker(tensor) is None
    if is_float or product_site(finder, tensor, layers).producing:
        may_split = is_float and all(_ends_in_float(plan, node) for node in layers)
        yield Operand(tensor, tuple(layers), grid, grids, may_split)


def weight_grids(plan: QuantizationPlan, layers: Sequence[gs.Node]) -> tuple[QuantSpec, ...]:
    """Return the grids of those of some layers' weights that are integers."""
    weights = [plan.specs.of_input(node, 1) for node in layers]
    return tuple(spec for spec, role in weights if spec and role == WEIGHT and spec.format.is_integer)


def _ends_in_float(plan: QuantizationPlan, node: gs.Node) -> bool:
    """Return whether another product can be added to that of a layer without being rounded."""
    result, formats = node.outputs[0], plan.specs.formats
    users = [user for user, _ in walk.uses(result)]
    if walk.is_output(result, plan.graph) or not users or node.attrs.get("alpha", 1.0) != 1:
        return False
    sums = all(user.op == "Add" and id(user) not in plan.specs.integers.layers for user in users)
    return formats[node] == formats.default and sums


def propose_moves(
    operands: Sequence[Operand], rows: Mapping[str, Sequence[Float32Array]], *, clips: bool
) -> dict[str, OutlierMove]:
    """Return the moves, by the name of a tensor, that make the errors of its layers at least 1 dB smaller.

    They are those of a scheme's ``outliers``, written with ``str``; :func:`transforms.move_outliers` applies
    them. ``operands``: of a plan of the prepared float graph. ``rows``: for each operand's tensor, some rows
    [rows, channels] of each sample, as the float model makes them. Each move is made of every other sample
    and judged on the others, in turn; tensors of fewer than two samples or 32 rows in a half are left alone.
    ``clips``: whether ranges of activations cut rare numbers off. Tensors whose layers share a weight
    have one move, or none.
    """
    found = {}
    for group in groups(operands):
        halves = [_halves(rows[operand.tensor.name]) for operand in group]
        if all(halves):
            move = _choose(group, halves, clips=clips)
            for operand in group:
                vars(operand).pop("weights", None)  # of one tensor, or those of one weight, at a time
                if move is not None:
                    found[str(operand.tensor.name)] = move
    return found


def _halves(samples: Sequence[Float32Array]) -> list[Float32Array]:
    """Return the rows of every other sample, and of those between; nothing where they are too few."""
    halves = [np.concatenate(samples[half::2]) for half in range(2)] if len(samples) > 1 else []
    return halves if all(len(half) >= _LEAST_ROWS and np.isfinite(half).all() for half in halves) else []


def _choose(
    group: Sequence[Operand], halves: Sequence[Sequence[Float32Array]], *, clips: bool
) -> OutlierMove | None:
    """Return the move of the least error; within half a dB the first that adds no products.

    ``halves``: of the rows of each operand of a group, which move alike.
    """
    of_halves = [_candidates(group, [of_one[half] for of_one in halves]) for half in range(2)]
    unmoved, *errors = [
        sum(
            total_error(move, rows, operand, clips=clips)
            for operand, of_one in zip(group, halves, strict=True)
            for move, rows in zip(proposed, (of_one, of_one[::-1]), strict=True)
        )
        for proposed in zip(*of_halves, strict=True)
    ]
    moves, best = _candidates(group, [rows for of_one in halves for rows in of_one])[1:], min(errors)
    shares = [_SIMILAR if move.own else 1 for move in moves]
    found = next(m for m, error, share in zip(moves, errors, shares, strict=True) if error <= share * best)
    return found if best < _LEAST_GAIN * unmoved and str(found) else None


def _candidates(group: Sequence[Operand], rows: Sequence[Float32Array]) -> list[OutlierMove]:
    """Return no move, and as many others for any rows.

    Outliers lowered, all channels brought to like sizes, or outliers with products of their own.
    """
    ranges = np.max([np.abs(some).max(0) for some in rows], axis=0).astype(np.float64)
    moves, largest = [OutlierMove()], float(ranges.max())
    moves += [as_move(lowered(ranges, max(largest * 2.0**-power, _TINY))) for power in _LOWERED]
    all_weights = [weight.ranges for operand in group for weight in operand.weights]
    of_weights = np.max(all_weights, axis=0).astype(np.float64)
    moves += [as_move(smoothed(ranges, of_weights, share)) for share in _SMOOTHED]
    if all(operand.may_split for operand in group):
        order = np.argsort(-ranges, kind="stable")
        counts = (count for count in _SPLIT if 4 * count <= len(ranges))
        moves += [OutlierMove(own=tuple(sorted(map(int, order[:count])))) for count in counts]
    return moves


def total_error(move: OutlierMove, rows: Sequence[Float32Array], operand: Operand, *, clips: bool) -> float:
    """Return the error of layers with a move of outliers; those with products of their own stay float.

    ``rows`` [rows, channels] of the operand: those that give the range, and those that are held out.
    """
    exponents, own = move.of_channels(operand.tensor.name, rows[0].shape[1]), np.array(move.own, np.int64)
    factors = np.ldexp(1.0, exponents)
    squares = channel_sums(rows[1], 1)[1] / max(1, len(rows[1]))
    rounded = sum(weight.error(squares, factors, own) for weight in operand.weights)
    norms = np.sum([weight.norms for weight in operand.weights], axis=0) * factors**2
    divisors = factors.astype(np.float32)
    seen, held_out = (np.divide(half, divisors, dtype=np.float32) for half in rows)
    seen[:, own] = held_out[:, own] = 0  # zero is exact, and in every range
    if operand.row_error is not None:
        return operand.row_error(held_out, norms, bool(str(move))) + rounded
    return rounding_error(seen, held_out, norms, operand.grid, clips=clips) + rounded
