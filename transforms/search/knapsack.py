"""Formats of least error within a budget of bits: the knapsack problem with one choice of several per layer.

Solved by dynamic programming over the layers, without states that cannot become best: those that another
state dominates in weight and error, and those whose best completion, if layers could mix two formats, does
not improve on a known solution (the bound of the linear relaxation, see Kellerer, Pferschy and Pisinger,
Knapsack Problems, 2004, chapter 11).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_STATES = 1 << 16
"""Most states; of more, only the best among those of similar weight are kept."""

_ROUNDING = 1e-12
"""Sums of a thousand numbers in float64 are exact to this share."""


@dataclass(frozen=True)
class Size:
    """Bits of a layer's weights, and of the activations that it reads for one sample."""

    weight: float
    activation: float = 0.0

    @property
    def total(self) -> float:
        """Both together: fewer bits are cheaper."""
        return self.weight + self.activation


@dataclass(frozen=True)
class Option:
    """Formats that a layer may have, by their ``label``: the output error that they add, and their size."""

    layer: str
    label: str
    error: float
    size: Size

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid error."""
        if not self.error >= 0:
            place = f"'{self.label}' in layer '{self.layer}'"
            raise ValueError(f"error of {place} is {self.error}, not 0 or more")


def size_of(
    choices: Mapping[str, str], sizes: Mapping[tuple[str, str], Size], baseline: Mapping[str, Size]
) -> Size:
    """Return the size of all layers with these choices; ``sizes`` by layer and label."""
    present = [sizes[layer, choices[layer]] if layer in choices else baseline[layer] for layer in baseline]
    return Size(math.fsum(one.weight for one in present), math.fsum(one.activation for one in present))


def least_bits(options: Iterable[Option], baseline: Mapping[str, Size]) -> float:
    """Return the fewest bits that all weights can take, at any finite error."""
    least = {layer: size.weight for layer, size in baseline.items()}
    for option in options:
        if math.isfinite(option.error):
            least[option.layer] = min(least[option.layer], option.size.weight)
    return math.fsum(least.values())


def choose_formats(options: Iterable[Option], baseline: Mapping[str, Size], budget: float) -> dict[str, str]:
    """Return the labels of layers to move so that all weights take at most ``budget`` bits, at least error.

    The errors of layers add up; a layer at the baseline has none, options of infinite error are left out. The
    result is optimal, unless there are more than 65,536 states on the Pareto front: then it is close to
    optimal, and within the budget. Raises ValueError for a budget below the least possible.
    """
    layers = _choices(options, baseline)
    least = math.fsum(layer.weights[0] for layer in layers)
    room = budget * (1 + _ROUNDING)
    if not least <= room:
        raise ValueError(f"a budget of {budget:.10g} bits cannot be met: the weights take {least:.10g}")
    relaxation = _Relaxation(layers)
    found = relaxation.rounded(room)
    better = _search(layers, relaxation, room, _error(layers, found))
    chosen = zip(layers, found if better is None else better, strict=True)
    return {layer.name: label for layer, i in chosen if (label := layer.labels[i]) is not None}


@dataclass(frozen=True)
class _Layer:
    """The choices of a layer by rising weight and falling error; the label of the baseline is None."""

    name: str
    labels: list[str | None]
    weights: NDArray[np.float64]
    errors: NDArray[np.float64]


def _choices(options: Iterable[Option], baseline: Mapping[str, Size]) -> list[_Layer]:
    """Return the layers, heavy ones first, so that little is soon left to decide."""
    rows: dict[str, list[tuple[float, float, float, str | None]]] = {
        layer: [(size.weight, 0.0, size.activation, None)] for layer, size in sorted(baseline.items())
    }
    for option in options:
        if math.isfinite(option.error):
            size = option.size
            rows[option.layer].append((size.weight, option.error, size.activation, option.label))
    layers = [_undominated(layer, row) for layer, row in rows.items()]
    return sorted(layers, key=lambda layer: -layer.weights[-1])


def _undominated(name: str, rows: Sequence[tuple[float, float, float, str | None]]) -> _Layer:
    kept: list[tuple[float, float, float, str | None]] = []
    for row in sorted(rows, key=lambda row: row[:3]):
        if not kept or row[1] < kept[-1][1]:
            kept.append(row)
    weights, errors, _, labels = zip(*kept, strict=True)
    return _Layer(name, list(labels), np.array(weights), np.array(errors))


def _error(layers: Sequence[_Layer], chosen: Sequence[int]) -> float:
    return math.fsum(layer.errors[i] for layer, i in zip(layers, chosen, strict=True))


class _Relaxation:
    """The same problem if layers could mix two formats: its solutions are steps of falling steepness.

    A step is along the lower convex hull of one layer's choices.
    """

    def __init__(self, layers: Sequence[_Layer]) -> None:
        """Sort the steps of all layers."""
        steps = [(i, *step) for i, layer in enumerate(layers) for step in _hull_steps(layer)]
        steps.sort(key=lambda step: step[3] / step[2])
        self._layers = layers
        self._places = [(i, choice) for i, choice, _, _ in steps]
        self._of = np.array([i for i, *_ in steps], np.intp)
        self._weights = np.array([step[2] for step in steps])
        self._errors = np.array([step[3] for step in steps])

    def least_error(self, first: int, room: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a lower bound of the error of the layers from ``first`` on, infinite if they do not fit."""
        rest, kept = self._layers[first:], self._of >= first
        weights = [math.fsum(layer.weights[0] for layer in rest), *self._weights[kept]]
        errors = [math.fsum(layer.errors[0] for layer in rest), *self._errors[kept]]
        return np.interp(room, np.cumsum(weights), np.cumsum(errors), left=np.inf)

    def rounded(self, room: float) -> list[int]:
        """Return choices that take the steps that fit, in their order."""
        chosen = [0] * len(self._layers)
        weight, full = math.fsum(layer.weights[0] for layer in self._layers), set()
        for (i, choice), step in zip(self._places, self._weights.tolist(), strict=True):
            if i in full or weight + step > room:
                full.add(i)
            else:
                chosen[i] = choice
                weight += step
        return chosen


def _hull_steps(layer: _Layer) -> list[tuple[int, float, float]]:
    """Return choice, weight and error (below zero) of each step along the lower convex hull."""
    steps, i = [], 0
    while i < len(layer.weights) - 1:
        weights, errors = layer.weights[i + 1 :] - layer.weights[i], layer.errors[i + 1 :] - layer.errors[i]
        best = int(np.argmin(errors / weights))
        i += 1 + best
        steps.append((i, float(weights[best]), float(errors[best])))
    return steps


def _search(layers: Sequence[_Layer], relaxation: _Relaxation, room: float, known: float) -> list[int] | None:
    """Return the choices of least error, or None if none is below ``known``."""
    weights, errors = np.zeros(1), np.zeros(1)
    trail: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    for done, layer in enumerate(layers, 1):
        all_weights = np.add.outer(weights, layer.weights).ravel()
        all_errors = np.add.outer(errors, layer.errors).ravel()
        bound = all_errors + relaxation.least_error(done, room - all_weights)
        kept = np.flatnonzero(bound < known * (1 - _ROUNDING))
        kept = kept[_pareto(all_weights[kept], all_errors[kept])]
        if not len(kept):
            return None
        weights, errors = all_weights[kept], all_errors[kept]
        trail.append((kept // len(layer.weights), kept % len(layer.weights)))
    chosen, state = [], int(errors.argmin())
    for parents, choices in reversed(trail):
        chosen.append(int(choices[state]))
        state = int(parents[state])
    return chosen[::-1]


def _pareto(weights: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the Pareto-optimal states by rising weight; of too many, those of least error in each range."""
    order = np.lexsort((errors, weights))
    sorted_errors = errors[order]
    before = np.minimum.accumulate(np.concatenate([[np.inf], sorted_errors[:-1]]))
    order = order[sorted_errors < before]
    if len(order) <= _MOST_STATES:
        return order
    spread = weights[order] - weights[order[0]]
    ranges = (spread / spread[-1] * (_MOST_STATES - 1)).astype(np.int64)
    return order[np.append(np.diff(ranges) > 0, True)]  # the last, so of least error, of each range
