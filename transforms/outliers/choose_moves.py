"""Which outlying channels of each tensor are moved, by the error of the layers that read it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ops.array_types import Float32Array, Float64Array
from ops.rotations import rotate
from transforms.graph.channel_layout import Layout
from transforms.outliers.layer_error import Halves, LayerWeights, Rows, total_error
from transforms.outliers.operand import Operand
from transforms.outliers.sample_rows import Sample
from transforms.scheme.outlier_move import OutlierMove

_LOWERED = (1, 2, 3, 4)  # powers of two by which the range of a tensor may shrink
_TAKEN = (1, 2, 4, 8, 16)  # channels that may get products of their own
_TINY = float(np.finfo(np.float32).tiny)
_LEAST_ROWS = 32  # of either half
_ALIKE = 10**0.05  # errors that differ by half a dB: the move that costs less will do
_OUTLYING = 8.0  # a peak over the root mean square; rotated numbers are at about 4.5
_LEAST_GAIN = 10**-0.1  # what is left of the error if a move is worth its nodes: 1 dB


def choose_moves(
    operands: Sequence[Operand], samples: Sequence[Sample], *, clips: bool
) -> dict[str, OutlierMove]:
    """Return the moves, by the name of a tensor, that make the errors of its layers at least 1 dB smaller.

    Each move is made of one half of the samples and judged on the other, in turn. ``clips``: whether ranges
    of activations cut rare numbers off.
    """
    found = {}
    for operand in operands:
        rows = [sample.rows[operand.tensor.name] for sample in samples]
        halves = [np.concatenate(rows[half::2]) for half in range(2)] if len(rows) > 1 else []
        if halves and all(len(half) >= _LEAST_ROWS and np.isfinite(half).all() for half in halves):
            move = _choose(operand, (Rows(halves[0]), Rows(halves[1])), clips=clips)
            if move is not None:
                found[operand.tensor.name] = move
    return found


def _choose(operand: Operand, halves: Halves, *, clips: bool) -> OutlierMove | None:
    both = np.concatenate([half.numbers for half in halves])
    rotates = operand.heads is not None and is_outlying(both)
    plain = _View(operand.weights, halves)
    rotated = _View.rotated(operand, halves) if rotates else None
    proposed = [_candidates(operand, half.numbers, rotates=rotates) for half in halves]

    def _error(move: OutlierMove, tried: Sequence[OutlierMove], most: float) -> float:
        view = rotated if rotated is not None and move.rotated else plain
        share = _ALIKE if view is rotated else 1  # exponents change no bit
        total = 0.0
        for one, rows in zip(tried, (view.halves, view.halves[::-1]), strict=True):
            total += total_error(one, rows, view.weights, operand.grid, clips=clips, most=most)
            if total * share > most:
                return math.inf
        return total * share

    moves = _candidates(operand, both, rotates=rotates)
    tries = list(zip(*proposed, strict=True))
    unmoved, errors = _error(moves[0], tries[0], math.inf), list[float]()
    for move, tried in zip(moves[1:], tries[1:], strict=True):
        errors.append(_error(move, tried, _ALIKE * min([_LEAST_GAIN * unmoved, *errors])))
    best = min(errors)
    alike = (
        n
        for n, move in enumerate(moves[1:])
        if errors[n] <= (_ALIKE if move.own or move.rotated else 1) * best
    )
    found = moves[1:][next(alike)]
    return found if best < _LEAST_GAIN * unmoved and str(found) else None


@dataclass(frozen=True)
class _View:
    """The weights of layers and two halves of the rows that they multiply, as they are or rotated."""

    weights: list[LayerWeights]
    halves: Halves

    @classmethod
    def rotated(cls, operand: Operand, halves: Halves) -> _View:
        """Rotate the channels of each head."""
        assert operand.heads is not None
        heads = operand.heads.channels
        turned = Rows(_rotated(halves[0].numbers, heads)), Rows(_rotated(halves[1].numbers, heads))
        return cls(operand.measured([_rotated(rows.T, heads).T for rows in operand.rows]), turned)


def is_outlying(rows: Float32Array) -> bool:
    """Return whether the largest of some numbers is far above their root mean square."""
    with np.errstate(all="ignore"):
        mean = np.mean(np.square(rows, dtype=np.float64))
        return bool(np.abs(rows).max(initial=0) > _OUTLYING * np.sqrt(mean))


def _rotated(rows: Float32Array, heads: Layout) -> Float32Array:
    found = rows.copy()
    found[:, heads] = rotate(found[:, heads].astype(np.float64))
    return found


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
        for count in (count for count in _TAKEN if 4 * count <= len(ranges)):
            yield OutlierMove(own=tuple(sorted(map(int, order[:count]))))
