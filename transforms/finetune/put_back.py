"""Revert tuned layers that make an output of the model regress, by halves of the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_graphsurgeon as gs

from transforms.finetune.tune_layer import LayerSolution
from transforms.finetune.write_layer import current, write_layer
from transforms.graph import walk
from transforms.judge.constants import MOST_MODELS
from transforms.layers.matched_layer import MatchedLayer

Layers = frozenset[int]


def keep_halves(changed: Sequence[int], gain: Callable[[Layers], float | None]) -> Layers:
    """Return the numbers of the layers to keep; all together they make an output regress.

    ``changed``: numbers in execution order; ``gain``: the model's gain with some of them tuned, None if an
    output regresses. A half that adds no gain to those already kept is halved, down to single layers.
    """
    tuned, best, left = frozenset[int](), 0.0, MOST_MODELS
    waiting = _halves(changed)
    while waiting and left:
        group = waiting.pop()
        left -= 1
        group_gain = gain(tuned.union(group))
        if group_gain is not None and group_gain > best:
            tuned, best = tuned.union(group), group_gain
        else:
            waiting += _halves(group)
    return tuned


def _halves(group: Sequence[int]) -> list[Sequence[int]]:
    """Return the halves of a group, the last to be tried first; none for a single layer."""
    middle = (len(group) + 1) // 2
    return [group[middle:], group[:middle]] if len(group) > 1 else []


class SwitchedLayers:
    """A model whose layers are switched between their old weights and those of a tuned copy."""

    def __init__(
        self, graph: gs.Graph, layers: Sequence[MatchedLayer], tuned: Sequence[MatchedLayer]
    ) -> None:
        """Start with no layer tuned."""
        self.graph, self._layers, self._tuned = graph, layers, tuned
        self._names = walk.Names(graph)
        self._own: dict[int, LayerSolution] = {}

    def switch(self, numbers: Layers) -> None:
        """Give the tuned weights to the layers with these numbers, and the old ones to the others."""
        for number in sorted(self._own.keys() - numbers):
            write_layer(self.graph, self._layers[number], self._own.pop(number), self._names)
        for number in sorted(numbers - self._own.keys()):
            self._own[number] = current(self._layers[number])
            write_layer(self.graph, self._layers[number], current(self._tuned[number]), self._names)
