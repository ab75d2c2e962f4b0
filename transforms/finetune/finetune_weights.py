"""Tuning the weights of a quantized model layer by layer, so that it makes what the float model makes.

Layers go in execution order. Each is fitted to the outputs of the float layer on the inputs that it has in
the quantized model as tuned so far, by linear algebra on sums over rows (:mod:`transforms.finetune.gram`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from transforms.finetune.checkpoint import Checkpoint, as_report
from transforms.finetune.collect_gram import GramReader, open_sums
from transforms.finetune.gram import SharedGramStats
from transforms.finetune.layer_targets import reads_activation_product
from transforms.finetune.options import LayerwiseOptions, TuneOptions
from transforms.finetune.tune_layer import LayerSolution, Tuned, tune_layer
from transforms.finetune.write_layer import current, write_layer
from transforms.graph import walk
from transforms.layers.match_layers import match_layers, of_operators
from transforms.layers.matched_layer import MatchedLayer, SkippedLayer


@dataclass(frozen=True)
class LayerReport:
    """What became of a layer: its error on held-out samples before and after, of ``power``, and how long."""

    name: str
    op: str
    before: float
    after: float
    power: float
    what: str
    seconds: float

    @property
    def is_kept(self) -> bool:
        """Whether the layer has new weights or a new bias."""
        return self.after < self.before


@dataclass
class TunedLayers:
    """The layers in order, and those that were left alone."""

    layers: list[LayerReport] = field(default_factory=list)
    left_alone: list[SkippedLayer] = field(default_factory=list)


@dataclass(frozen=True)
class Memory:
    """A checkpoint, and the name under which a walk is in it."""

    checkpoint: Checkpoint
    recipe: str


Progress = Callable[[LayerReport, int, int], None]


def finetune_weights(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: LayerwiseOptions | None = None,
    *,
    formats: Sequence[Format] = (),
    judge: Callable[[], float] | None = None,
    memory: Memory | None = None,
    progress: Progress | None = None,
) -> TunedLayers:
    """Tune the layers that :func:`transforms.layers.match_layers.match_layers` finds, in place.

    A layer is given new weights if they are better on the samples that are held out, and if ``judge``, where
    it is given, returns a lower number after that than before. ``formats`` are those that the model was
    quantized to. ``progress`` is called with what became of a layer, how many are done and how many there
    are. ``memory`` keeps what was found, and gives it back to another run on the same models and data.

    Raises ValueError for fewer than two samples, a model that fails on one, models without a layer that can
    be tuned and operator types of which there is none.
    """
    options = options or LayerwiseOptions()
    if len(feeds) < 2:
        raise ValueError(f"{len(feeds)} sample, at least 2 are needed: one to fit to, one to judge by")
    layers, left = match_layers(float_graph, quantized_graph, formats)
    if not layers:
        first = f": '{left[0].name}' ({left[0].op}): {left[0].reason}" if left else ""
        raise ValueError(f"no layer can be tuned, of {len(left)} dot products{first}")
    layers, others = of_operators(layers, options.op_types)
    done = TunedLayers(left_alone=left + others)
    with open_sums(float_graph, quantized_graph, feeds, layers, options) as sums:
        walked = _LayerwiseTuner(quantized_graph, layers, sums, options.tune, judge)
        for number in range(len(layers)):
            report = walked.visit(number, memory)
            done.layers.append(report)
            if progress:
                progress(report, number + 1, len(layers))
    return done


_ADD = 0.95
"""What an Add behind a MatMul has to bring the held-out error down to: it is one more node to run."""


class _LayerwiseTuner:
    """Both models on their way through the layers."""

    def __init__(
        self,
        quantized_graph: gs.Graph,
        layers: Sequence[MatchedLayer],
        sums: GramReader,
        options: TuneOptions,
        judge: Callable[[], float] | None,
    ) -> None:
        self._graph, self._layers, self._sums, self._options = quantized_graph, layers, sums, options
        self._names = walk.Names(quantized_graph)
        self._judge = judge
        self._judged = judge() if judge else 0.0

    def visit(self, number: int, memory: Memory | None) -> LayerReport:
        """Tune a layer, or do again what was found earlier; return what became of it."""
        known = memory.checkpoint.get(memory.recipe, number) if memory else None
        report = self._repeat(number, *known) if known else self._tune(number, memory)
        self._sums.forget(number)
        return report

    def _repeat(self, number: int, found: LayerSolution | None, report: Mapping[str, Any]) -> LayerReport:
        if found is not None:
            self._put(self._layers[number], found)
        return LayerReport(**report)

    def _tune(self, number: int, memory: Memory | None) -> LayerReport:
        start = time.perf_counter()
        layer = self._layers[number]
        found = self._best(layer, number)
        if found.after < found.before:
            found = self._write(layer, number, found)
        seconds = time.perf_counter() - start
        numbers = found.before, found.after, found.power
        report = LayerReport(_title(layer), layer.node.op, *numbers, found.best.what, seconds)
        if memory:
            kept = found.best if report.is_kept else None
            memory.checkpoint.put(memory.recipe, number, kept, as_report(report))
        return report

    def _best(self, layer: MatchedLayer, number: int) -> Tuned:
        fit, held = self._sums.read(number)
        fit = _of_products(layer, fit)
        before = current(layer)
        found = tune_layer(layer, before, fit, held, self._options)
        if all(fit.has_bias) or not all(user.bias for user in layer.users):
            return found
        with_add = tune_layer(layer, before, fit.freed(), held.freed(), self._options)
        return with_add if with_add.after < _ADD * found.after else found

    def _write(self, layer: MatchedLayer, number: int, found: Tuned) -> Tuned:
        before, after = current(layer), found.after
        self._put(layer, found.best)
        if layer.others:  # what some read may come from others, and be another now
            held = self._sums.read(number)[1]
            after = float(held.error(found.best.weights, found.best.bias).sum())
        if after < found.before and self._is_better():
            return Tuned(found.best, found.before, after, found.power)
        self._put(layer, before)
        return Tuned(before, found.before, found.before, found.power)

    def _put(self, layer: MatchedLayer, candidate: LayerSolution) -> None:
        write_layer(self._graph, layer, candidate, self._names)
        if layer.others:
            self._sums.restart()  # what ran between the users ran with other weights

    def _is_better(self) -> bool:
        """Return whether the judge, if any, likes the model better than it did."""
        if self._judge is None:
            return True
        judged = self._judge()
        is_better, self._judged = judged < self._judged, min(judged, self._judged)
        return is_better


def _title(layer: MatchedLayer) -> str:
    return f"{layer.name} and {len(layer.others)} more" if layer.others else layer.name


def _of_products(layer: MatchedLayer, fit: SharedGramStats) -> SharedGramStats:
    """Let users that read a product of computed tensors stand for their own rounding alone."""
    parts = (
        part.of_layer(layer.float_weight.reshape(part.yx.shape), user.float_bias)
        if reads_activation_product(user.source)
        else part
        for part, user in zip(fit.parts, layer.users, strict=True)
    )
    return SharedGramStats(tuple(parts), fit.has_bias)
