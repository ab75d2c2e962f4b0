"""Which of the tuned layers are kept if all of them together harm an output.

Layers fall into groups by the outputs that they lead to. Groups are tried one after another, on top of those
that are kept already; a group that does harm is halved in execution order, down to single layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.layers.matched_layer import MatchedLayer

Layers = frozenset[int]

Judge = Callable[[Layers], float | None]
"""The gain of a model in which some layers, by their numbers, are tuned; None if it harms an output."""

MOST_TRIALS = 32
"""Models that are tried: each runs on the samples that are compared."""


def choose_layers(
    reached: Sequence[frozenset[str]], harmed: frozenset[str], judge: Judge, most: int = MOST_TRIALS
) -> Layers:
    """Return the layers to keep; all together they harm outputs, which are in ``harmed``.

    ``reached``: the outputs that each layer leads to; ``most``: how many models may be tried.
    """
    trial = _Trials(judge, most)
    for guess in _guesses(reached, harmed):
        if trial.take(guess):
            break
    waiting = [group for group in reversed(_groups(reached)) if not trial.kept.issuperset(group)]
    while waiting and trial.left:
        group = waiting.pop()
        if len(group) < len(reached) and trial.take(trial.kept.union(group)):
            continue
        if len(group) > 1:
            middle = len(group) // 2
            waiting += [group[middle:], group[:middle]]
    return trial.kept


def reached_outputs(graph: gs.Graph, layers: Sequence[MatchedLayer]) -> list[frozenset[str]]:
    """Return the names of the outputs that each layer, or one that shares its weight, leads to."""
    found = {id(tensor): frozenset([str(tensor.name)]) for tensor in graph.outputs}
    nothing: frozenset[str] = frozenset()
    for node in reversed(list(graph.nodes)):
        reached = nothing.union(*(found.get(id(tensor), nothing) for tensor in node.outputs))
        for tensor in walk.reads(node):
            found[id(tensor)] = found.get(id(tensor), nothing) | reached
    return [
        nothing.union(
            *(found.get(id(tensor), nothing) for user in layer.users for tensor in user.node.outputs)
        )
        for layer in layers
    ]


class _Trials:
    """The best choice so far, and how many may still be tried."""

    def __init__(self, judge: Judge, most: int) -> None:
        self.kept: Layers = frozenset()
        self.left = most
        self._judge, self._gain = judge, 0.0

    def take(self, layers: Layers) -> bool:
        """Return whether a choice is better than the best so far, which it then replaces."""
        if not layers or layers == self.kept or not self.left:
            return False
        self.left -= 1
        gain = self._judge(layers)
        if gain is None or gain <= self._gain:
            return False
        self.kept, self._gain = layers, gain
        return True


def _guesses(reached: Sequence[frozenset[str]], harmed: frozenset[str]) -> Iterator[Layers]:
    """Yield all layers but those that lead to harmed outputs alone, and all but those that lead to any."""
    yield frozenset(i for i, outputs in enumerate(reached) if not outputs <= harmed)
    yield frozenset(i for i, outputs in enumerate(reached) if not outputs & harmed)


def _groups(reached: Sequence[frozenset[str]]) -> list[list[int]]:
    """Return layers that lead to the same outputs together, in execution order."""
    groups: dict[frozenset[str], list[int]] = {}
    for i, outputs in enumerate(reached):
        groups.setdefault(outputs, []).append(i)
    return list(groups.values())
