"""Where the error of a quantized model begins: what each layer adds, inherits, and causes in outputs.

The errors that single layers cause add up in the outputs as long as they are small compared with the signal.
They rank the layers, with equal weight for each sample. The number of layers that are named is measured: the
fewest that, returned to float together, remove half of the error, and more than all others do
(:mod:`transforms.origins.carries_half`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from ops.metrics import Sums
from transforms.graph.output_view import output_view
from transforms.judge.constants import SEARCHED_ON
from transforms.judge.sample_roles import comparing, taken
from transforms.origins.carries_half import HALF, carries_half
from transforms.origins.input_ranges import InputRange, input_ranges
from transforms.origins.layer_shares import LayerShares, layer_shares
from transforms.origins.loss_causes import Cause, cause_of
from transforms.precision.chosen import Part
from transforms.precision.switched_layers import SwitchedLayers, Trials
from transforms.run.events import Progress
from transforms.run.feeds import spread
from transforms.runtime.session import RunOptions

CLOSE = 8
"""The search for the fewest layers may return one too many for each ``CLOSE`` of them."""

BEGINS = 0.25
"""The share of an error from which it counts as beginning at one layer; below, it comes from many."""

MOST_CAUSES = 12
"""The most layers per output whose causes are searched for."""


@dataclass(frozen=True)
class LayerLoss:
    """The losses of one layer.

    SQNR of its output in dB: ``own`` with float inputs, ``total`` with all errors up to it, ``inherited``
    without its own error. ``shares``: for each output, the layer's share of the errors that single layers
    cause, averaged over samples. ``bytes_in_float`` and ``bytes_in_16_bits``: the growth of its constants in
    these types.
    """

    part: Part
    own: float
    total: float
    inherited: float
    shares: dict[str, float]
    bytes_in_float: int = 0
    bytes_in_16_bits: int = 0


@dataclass(frozen=True)
class OutputLoss:
    """An output: its SQNR in dB, and the indices of the layers that hold half of its error or more.

    ``named``: these layers, the largest error first; ``without``: the SQNR with them in float, ``others``:
    with all other layers in float instead. ``share``: the fraction of the squared error that they remove.
    ``is_cache``: whether it is a cache in a model with logits (:mod:`transforms.graph.output_view`).
    """

    name: str
    sqnr: float
    named: tuple[int, ...]
    without: float
    others: float
    share: float
    is_cache: bool


@dataclass(frozen=True)
class LossOrigins:
    """The layers in the order of the model, and the outputs, the most important first.

    ``causes``: of the named layers, by index. ``inputs``: the ranges of the samples.
    """

    layers: list[LayerLoss]
    outputs: list[OutputLoss]
    samples: int
    unpaired: tuple[str, ...]
    causes: Mapping[int, Cause]
    inputs: Sequence[InputRange]

    @property
    def main(self) -> OutputLoss:
        """The output with the largest error that is not a cache."""
        return self.outputs[0]

    def first(self) -> LayerLoss | None:
        """Return the layer with most of the main output's error, or None if no layer has much of it."""
        if not self.main.named:
            return None
        layer = self.layers[self.main.named[0]]
        return layer if layer.shares[self.main.name] >= BEGINS else None


def find_origins(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    run: RunOptions | None = None,
    progress: Progress | None = None,
) -> LossOrigins:
    """Return where the loss of a quantized model begins, measured on the feeds.

    ``float_graph`` is the float model in the form that was quantized; both graphs are changed. Raises
    ValueError like :class:`SwitchedLayers`, and without feeds or floating outputs.
    """
    caches = output_view(float_graph).caches
    return origins_of(SwitchedLayers(float_graph, quantized_graph, run, inner=True), feeds, caches, progress)


def origins_of(
    model: SwitchedLayers,
    feeds: Sequence[Feed],
    caches: Collection[str] = (),
    progress: Progress | None = None,
) -> LossOrigins:
    """Return the same for a model that is already prepared; ``caches``: outputs to list last."""
    if not feeds:
        raise ValueError("there are no samples to find the origins of errors on")
    if not model.outputs:
        raise ValueError("the model has no output of a floating type to compare")
    layers = _layers(model, layer_shares(model, feeds, progress))
    together = Trials(model, taken(feeds, set(comparing(len(feeds)))))
    outputs = [_output(together, name, layers, is_cache=name in caches) for name in model.outputs]
    outputs.sort(key=lambda output: (output.is_cache, output.sqnr))
    named = dict.fromkeys(place for output in outputs for place in output.named[:MOST_CAUSES])
    causes = _causes(model, list(named), taken(feeds, spread(range(len(feeds)), SEARCHED_ON)))
    ranges = input_ranges(model.readings.values(), feeds)
    return LossOrigins(layers, outputs, len(together.feeds), tuple(model.unpaired), causes, ranges)


def _layers(model: SwitchedLayers, measured: LayerShares) -> list[LayerLoss]:
    return [
        LayerLoss(
            part,
            alone.sqnr(),
            every.sqnr(),
            _rest(every, alone).sqnr(),
            {name: float(shares[place]) for name, shares in measured.shares.items()},
            *(round(model.more_bytes(part, bits)) for bits in (32, 16)),
        )
        for place, (part, alone, every) in enumerate(
            zip(model.parts, measured.own, measured.every, strict=True)
        )
    ]


def _causes(model: SwitchedLayers, places: Sequence[int], feeds: Sequence[Feed]) -> dict[int, Cause]:
    """Return the causes for some layers, found in their inputs; the float model runs once on each feed."""
    layers = [model.parts[place] for place in places]
    seen: dict[str, list[AnyArray]] = {}
    for feed in feeds:
        for name, array in model.sources(layers, feed).items():
            seen.setdefault(name, []).append(array)
    readings = ([reading for name in layer.nodes for reading in model.readings[name]] for layer in layers)
    return {place: cause_of(reads, seen) for place, reads in zip(places, readings, strict=True)}


def _rest(all_errors: Sums, alone: Sums) -> Sums:
    """Return the error of a layer's output without its own part, assuming that both are independent."""
    error = max(all_errors.error_energy - alone.error_energy, 0.0)
    return Sums(all_errors.count, all_errors.baseline_energy, error_energy=error, peak=all_errors.peak)


def _output(trials: Trials, name: str, layers: Sequence[LayerLoss], *, is_cache: bool) -> OutputLoss:
    """Return an output with the fewest layers, in order of their shares, that hold half of its error."""
    every = trials.everything
    ranked = sorted(every, key=lambda i: (-layers[i].shares[name], i))
    shares = np.array([layer.shares[name] for layer in layers])
    total, sqnr = trials.errors(every, name), trials.pooled(every, name).sqnr()

    def _holds(count: int) -> bool:
        first = frozenset(ranked[:count])
        return carries_half(total, trials.errors(every - first, name), trials.errors(first, name))

    if not total.any():
        return OutputLoss(name, sqnr, (), sqnr, sqnr, 0.0, is_cache)
    high = _fewest(len(ranked), int(np.searchsorted(np.cumsum(-np.sort(-shares)), HALF)) + 1, _holds)
    named = tuple(ranked[:high])
    left, only_named = trials.pooled(every.difference(named), name), trials.pooled(named, name)
    share = 1 - left.error_energy / float(total.sum())
    return OutputLoss(name, sqnr, named, left.sqnr(), only_named.sqnr(), share, is_cache)


def _fewest(most: int, guess: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest count for which ``holds`` is true, or up to an eighth more.

    It is assumed to be true for ``most``. The search brackets the answer around a guess by factors of 2, then
    bisects.
    """
    low, high, middle = 0, most, max(1, min(guess, most - 1))
    while high - low > max(1, low // CLOSE):
        low, high = (low, middle) if holds(middle) else (middle, high)
        middle = (low + high) // 2
        if not low or high == most:
            middle = min(2 * low, middle) if low else high // 2
    return high
