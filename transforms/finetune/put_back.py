"""Putting back tuned layers that let an output of the model regress, by halves of the layers."""

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
    """Return the layers to keep, by their numbers; all together they let an output regress.

    ``changed``: numbers in execution order; ``gain``: what a model gains with some of them tuned, None if an
    output regresses. A half that gains nothing beyond those that are kept is halved, down to single layers.
    """
    kept, best, left = frozenset[int](), 0.0, MOST_MODELS
    waiting = _halves(changed)
    while waiting and left:
        group = waiting.pop()
        left -= 1
        found = gain(kept.union(group))
        if found is not None and found > best:
            kept, best = kept.union(group), found
        else:
            waiting += _halves(group)
    return kept


def _halves(group: Sequence[int]) -> list[Sequence[int]]:
    """Return the halves of a group, the last to be tried first; none of a single one."""
    middle = (len(group) + 1) // 2
    return [group[middle:], group[:middle]] if len(group) > 1 else []


class SwitchedLayers:
    """A model whose layers are switched between their own weights and those of a tuned copy."""

    def __init__(
        self, graph: gs.Graph, layers: Sequence[MatchedLayer], tuned: Sequence[MatchedLayer]
    ) -> None:
        """Start with no layer tuned."""
        self.graph, self._layers, self._tuned = graph, layers, tuned
        self._names = walk.Names(graph)
        self._own: dict[int, LayerSolution] = {}

    def switch(self, numbers: Layers) -> None:
        """Let layers of these numbers alone have the weights of the tuned copy."""
        for number in sorted(self._own.keys() - numbers):
            write_layer(self.graph, self._layers[number], self._own.pop(number), self._names)
        for number in sorted(numbers - self._own.keys()):
            self._own[number] = current(self._layers[number])
            write_layer(self.graph, self._layers[number], current(self._tuned[number]), self._names)
