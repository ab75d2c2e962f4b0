"""A move: leave the few layers in float that cause most of the loss, if that is worth their price.

The error that each layer causes alone is measured by a group search on every second sample, in one session
with switches. On the other samples, with ranges from the other fold, the number of the worst layers with the
largest gain above their price is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.metrics import decibels
from transforms.graph.constants import bytes_of_numbers
from transforms.graph.dot_products import is_dot_product
from transforms.graph.selection import exactly, label_of
from transforms.graph.some_names import counted
from transforms.judge.constants import FEWEST, FINE, LAYER_RUNS, ONE_OF, PER_PERCENT, WORTH
from transforms.judge.decisions import LAYERS_IN_FLOAT, LossyLayers
from transforms.judge.errors import Errors, Gain, gain
from transforms.judge.sample_roles import judging_layers, ranking, ranking_layers, taken
from transforms.judge.switchable_ranges import SwitchableRanges
from transforms.moves.improve import Best
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import IN_FLOAT
from transforms.scheme.scheme import FLOAT32
from transforms.search.group_search import joined, shares_of_parts

_LEAST = 0.05  # least share of the error left after a layer is removed, since shares are not quite additive


def try_lossy_layers(best: Best) -> None:
    """Leave the layers in float that are worth their price on samples that did not rank them.

    Not of a language model: its tensors are left in float instead, which costs no bytes.
    """
    if not may_gain(best):
        return
    feeds, outputs = best.form.judge.reference.feeds, best.form.judge.reference.unsaturated
    layers = _layers(best)
    if not layers:
        return
    # rank layers on some samples, judge choices of the worst on the others
    search = _Search(best, layers, outputs, ranking_layers(len(feeds)))
    judged = judging_layers(len(feeds))

    def _errors(scheme: Scheme) -> Errors:
        return best.form.model.errors(scheme, judged).of_outputs(outputs).at_most(FINE)

    def _value(choice: tuple[list[int], Gain]) -> float:
        return choice[1].decibels - search.price(choice[0])

    before = _errors(best.scheme)
    choices = [(indices, gain(_errors(search.scheme(indices)), before)) for indices in search.choices()]
    for indices, won in sorted(choices, key=_value, reverse=True):
        is_worth = won.is_accepted(search.price(indices))
        best.note(
            LAYERS_IN_FLOAT, counted(len(indices), "layer") + " in float", won, len(judged), kept=is_worth
        )
        if is_worth:
            names = tuple(next(n for n in layers[i].nodes if n in best.nameable) for i in indices)
            best.decisions.lossy = LossyLayers(names, len(layers), won, sum(search.more[i] for i in indices))
            best.scheme = search.scheme(indices)
            best.errors = best.form.errors(best.scheme)
            return


def may_gain(best: Best) -> bool:
    """Return whether layers in float are looked for: outputs are not as good already, and samples enough."""
    reference = best.form.judge.reference
    if not best.nameable or len(reference.feeds) < 2 * FEWEST or reference.logits:
        return False
    return best.errors.of_outputs(reference.unsaturated).at_most(FINE).mean + WORTH < FINE


def seconds_of_search(best: Best) -> float:
    """Return about how many seconds the moves take in all where layers in float are looked for, and else 0.

    Ranking layers takes most of them, in runs that the budget tells. The first runs, which round weights and
    run the float model too, take longer than later ones by about what the other moves add.
    """
    if not may_gain(best):
        return 0.0
    least, most = LAYER_RUNS
    return best.form.model.seconds * max(least, min(best.budget.whole, most))


def price(more: float, layers: int) -> float:
    """Return the dB that layers in float have to gain; ``more``: the bytes that they add, as a share.

    The price is ``PER_PERCENT`` for each percent of bytes, and ``WORTH`` for the time of each layer.
    """
    return PER_PERCENT * 100 * max(more, 0.0) + WORTH * layers


@dataclass(frozen=True)
class Layer:
    """Nodes that are left in float together, by name and index, and their rounded outputs."""

    nodes: tuple[str, ...]
    outputs: tuple[str, ...]
    places: frozenset[int]


def _layers(best: Best) -> list[Layer]:
    """Return the layers of the main graph with rounded inputs, in order.

    Of more than ``MOST_PARTS``, those after a dot product are grouped with it.
    """
    inputs, nodes = best.form.model.inputs, best.form.model.nodes
    reading = {use.consumer for use in inputs.uses} | {weight.use[0] for weight in inputs.weights}
    rounded = {use.tensor for use in inputs.uses if use.consumer is None}
    main = {id(node) for node in best.form.graph.nodes}
    places = [i for i, node in enumerate(nodes) if i in reading and id(node) in main]
    layers = []
    for group in joined(places, lambda place: is_dot_product(nodes[place])):
        names = tuple(label_of(nodes[place]) for place in group)
        ends = (str(tensor.name) for place in group for tensor in nodes[place].outputs)
        layers.append(Layer(names, tuple(name for name in ends if name in rounded), frozenset(group)))
    return layers


class _Search:
    """Searches the layers whose gain in float exceeds their price most, on the ranking samples."""

    def __init__(
        self, best: Best, layers: Sequence[Layer], outputs: Sequence[int], samples: Sequence[int]
    ) -> None:
        """Take the layers, the places of the compared ``outputs``, and those of the ranking ``samples``.

        Each error takes a run of each sample: as many samples are used as the budget allows for measuring
        all layers one by one, within ``LAYER_RUNS``.
        """
        runs, count = min(best.budget.whole, LAYER_RUNS[1]), len(layers)
        self._ranks = taken(samples, ranking(len(samples), runs, count))
        self._looks = max(runs, LAYER_RUNS[0]) // len(self._ranks)
        self._model, self._scheme, self._layers = best.form.model, best.scheme, layers
        self._outputs = outputs
        self._able = [i for i, layer in enumerate(layers) if not best.nameable.isdisjoint(layer.nodes)]
        self._nameable = best.nameable
        self.more = _more_bytes(best.form.graph, self._model.inputs, layers)
        """The bytes that each layer adds in float, as a share of those of all numbers."""

    def scheme(self, indices: Sequence[int]) -> Scheme:
        """Return the scheme with some of the layers in float."""
        layers = [self._layers[i] for i in indices]
        names = (name for layer in layers for name in layer.nodes if name in self._nameable)
        ends = (name for layer in layers for name in layer.outputs)
        return self._scheme.with_(
            layers={**self._scheme.layers, **dict.fromkeys(map(exactly, names), IN_FLOAT)},
            tensors={**self._scheme.tensors, **dict.fromkeys(ends, FLOAT32)},
        )

    def choices(self) -> list[list[int]]:
        """Return choices of layers to try in float: the best number by shares, half and twice as many."""
        order, count = self._order()
        counts = {min(round(count * times), len(order)) for times in (0.5, 1.0, 2.0)} - {0} if count else ()
        return [sorted(order[:number]) for number in sorted(counts)]

    def _order(self) -> tuple[list[int], int]:
        """Return the layers in order of decreasing worth, and how many of them are worth most together."""
        shares, rest = self._shares()
        order, values = list[int](), [0.0]
        while shares and len(order) < len(self._layers) // ONE_OF:
            worth = {i: self._worth(i, share, rest) for i, share in shares.items()}
            layer = max(worth, key=worth.__getitem__)
            order.append(layer)
            values.append(values[-1] + worth[layer])
            rest = max(rest - shares.pop(layer), _LEAST * rest)
        return order, int(np.argmax(values))

    def _worth(self, layer: int, share: float, rest: float) -> float:
        return decibels(max(1 - share / rest, _LEAST)) - self.price([layer])

    def price(self, layers: Sequence[int]) -> float:
        """Return the dB that layers in float have to gain."""
        return price(sum(self.more[i] for i in layers), len(layers))

    def _shares(self) -> tuple[dict[int, float], float]:
        """Return the error share of each layer that was separated from others, and that of all together."""
        everything = self._errors([]).errors.sum(0)
        counted_in = everything > 0
        if not counted_in.any():
            return {}, 0.0

        def _left(removed: Set[int]) -> float:
            errors = self._errors([self._able[place] for place in removed]).errors.sum(0)
            return float((errors[counted_in] / everything[counted_in]).mean())

        shares, _ = shares_of_parts(len(self._able), _left, WORTH, self._looks)
        single = {self._able[part.start]: share for part, share in shares.items() if len(part) == 1}
        return {layer: share for layer, share in single.items() if share > 0}, sum(shares.values())

    def _errors(self, indices: Sequence[int]) -> Errors:
        return self._model.errors(self.scheme(indices), self._ranks, whole=True).of_outputs(self._outputs)


def _more_bytes(graph: gs.Graph, inputs: SwitchableRanges, layers: Sequence[Layer]) -> list[float]:
    """Return the bytes of weights that each layer adds in float, as a share of those of all numbers."""
    weights = {weight.tensor: weight for weight in inputs.weights}
    saved = {name: site.stored.nbytes * (1 - site.bits / 32) for name, site in weights.items()}
    stored = bytes_of_numbers(graph) - sum(saved.values())
    layer_at = {place: number for number, layer in enumerate(layers) for place in layer.places}
    shares = [0.0] * len(layers)
    for weight in weights.values():
        if (number := layer_at.get(weight.use[0])) is not None:
            shares[number] += saved[weight.tensor] / stored
    return shares
