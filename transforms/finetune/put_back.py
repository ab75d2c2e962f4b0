"""Putting back tuned layers that harm an output of the model, and learned roundings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from ops.formats import Format
from transforms.finetune.layer_choice import MOST_TRIALS, Layers, choose_layers, reached_outputs
from transforms.finetune.tune_layer import LayerSolution
from transforms.finetune.tuned_layers import TunedLayers
from transforms.finetune.write_layer import current, write_layer
from transforms.graph import walk
from transforms.layers.match_layers import match_layers, of_operators
from transforms.layers.matched_layer import MatchedLayer
from transforms.model.copy_graph import copy_graph


@dataclass(frozen=True)
class SomeLayers:
    """The float model and the quantized one, and where layers are in tuned copies of it.

    ``changed``: numbers of those whose weights or biases changed; ``formats`` and ``op_types``: as the layers
    were found.
    """

    models: tuple[gs.Graph, gs.Graph]
    tuned: Sequence[Sequence[MatchedLayer]]
    changed: Sequence[int]
    formats: Sequence[Format]
    op_types: Sequence[str]

    def copies(self) -> list[SwitchedLayers]:
        """Return a copy of the quantized model for each of the tuned ones, to switch layers in."""
        found = []
        for tuned in self.tuned:
            graph = copy_graph(self.models[1])
            layers, _ = match_layers(self.models[0], graph, self.formats)
            found.append(SwitchedLayers(graph, of_operators(layers, self.op_types)[0], tuned))
        return found


def keep_harmless(
    some: SomeLayers,
    harmed: frozenset[str],
    gain: Callable[[Sequence[gs.Graph]], float | None],
    most: int = MOST_TRIALS,
) -> tuple[list[gs.Graph], Layers]:
    """Return models with some of the changed layers, and their numbers; the given graphs are not changed.

    All together they harm outputs. ``gain`` of the models, each with the same layers of its tuned copy, is
    None if they harm an output; ``most``: how often it is asked.
    """
    trials, changed = some.copies(), some.changed

    def _judge(places: Layers) -> float | None:
        for trial in trials:
            trial.switch(frozenset(changed[place] for place in places))
        return gain([trial.graph for trial in trials])

    reached = reached_outputs(trials[0].graph, [trials[0].layers[number] for number in changed])
    kept = frozenset(changed[place] for place in choose_layers(reached, harmed, _judge, most))
    found = some.copies()  # layers that were put back may have a bias of zero that they did not have before
    for one in found:
        one.switch(kept)
    return [one.graph for one in found], kept


def unlearn(some: SomeLayers, walked: TunedLayers) -> tuple[gs.Graph, TunedLayers]:
    """Return a tuned model whose layers have no learned roundings, and its layers.

    Other layers stay, though they were fitted to what those with learned roundings make: roundings that were
    chosen by so little differ by little, and a second walk takes as long as the first.
    """
    (found,) = some.copies()
    found.switch(frozenset(some.changed))
    for number, (solution, _) in walked.unlearned.items():
        found.write(number, solution)
    layers = [
        walked.unlearned[number][1] if number in walked.unlearned else layer
        for number, layer in enumerate(walked.layers)
    ]
    return found.graph, replace(walked, layers=layers, matched=[], unlearned={})


class SwitchedLayers:
    """A model whose layers are switched between their own weights and those of a tuned copy."""

    def __init__(
        self, graph: gs.Graph, layers: Sequence[MatchedLayer], tuned: Sequence[MatchedLayer]
    ) -> None:
        """Start with no layer tuned."""
        self.graph, self.layers, self._tuned = graph, layers, tuned
        self._names = walk.Names(graph)
        self._own: dict[int, LayerSolution] = {}

    def write(self, number: int, solution: LayerSolution) -> None:
        """Let a layer have other weights."""
        write_layer(self.graph, self.layers[number], solution, self._names)

    def switch(self, numbers: Layers) -> None:
        """Let layers of these numbers alone have the weights of the tuned copy."""
        for number in sorted(self._own.keys() - numbers):
            self.write(number, self._own.pop(number))
        for number in sorted(numbers - self._own.keys()):
            self._own[number] = current(self.layers[number])
            self.write(number, current(self._tuned[number]))
