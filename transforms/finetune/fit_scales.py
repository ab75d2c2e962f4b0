"""Scales and shared exponents of weights of few bits, chosen by what they change in a layer's outputs.

Layers are visited in execution order, each on its inputs in the quantized model as it is by then. Weights
are rounded to nearest; of several scales for a channel or a block, the one is taken with which the layer
comes nearest to the outputs of the float layer, the mean of that difference going into the bias. Held-out
samples say whether weights are better kept near the float ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from transforms.finetune.collect_gram import GramReader, open_sums
from transforms.finetune.finetune_weights import of_products
from transforms.finetune.held_out import HeldOutJudge
from transforms.finetune.layer_stats import SharedGramStats
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.scale_candidates import DAMPINGS, best_scales
from transforms.finetune.tune_layer import LayerSolution
from transforms.finetune.write_layer import current, write_layer
from transforms.full_range.share_shifts import shift_alike
from transforms.graph import walk
from transforms.judge.constants import FEWEST_TO_SPARE, FITTED_SCALES, SPARED
from transforms.judge.errors import Gain
from transforms.layers.match_layers import match_layers
from transforms.layers.matched_layer import MatchedLayer
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import RunOptions
from transforms.scheme.few_bits import has_few_bits

_MEMORY = 1 << 30


def options_for(
    samples: int, run: RunOptions | None = None, memory_limit: int | None = None
) -> FinetuneOptions:
    """Return the options of a run in bounded memory: 1 GiB for tensors of each model, or as told.

    Half of the ``samples`` are held out, of few every fifth.
    """
    every = 2 if samples >= FEWEST_TO_SPARE else SPARED
    return FinetuneOptions(memory_limit=memory_limit or _MEMORY, run=run or RunOptions(), held_out=every)


Progress = Callable[[int, int], None]


@dataclass
class FittedScales:
    """The better model; layers with new scales, of how many; relative errors of outputs before and after.

    Errors and ``gain`` are those on ``samples`` held-out samples. ``graph`` is the one that was given if the
    outputs did not improve.
    """

    graph: gs.Graph
    layers: int = 0
    fitted: int = 0
    before: float = 0.0
    after: float = 0.0
    samples: int = 0
    gain: Gain | None = None


def fit_scales(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: FinetuneOptions | None = None,
    *,
    formats: Sequence[Format] = (),
    progress: Progress | None = None,
) -> FittedScales:
    """Return a quantized model whose weights of few bits have scales chosen by the outputs of their layers.

    Weights, scales and biases of :func:`transforms.layers.match_layers.match_layers`'s layers change, also
    biases that were corrected for other scales. The model is the one that was given unless its outputs are
    better by ``FITTED_SCALES`` on held-out samples, and by the rule of all changes. Nothing is done for
    fewer than two samples. ``float_graph`` is the float model in the form that was quantized, ``formats`` as
    in :func:`transforms.finetune.finetune_model.finetune_model`. Neither graph is changed.

    Raises ValueError for a model that fails on a sample.
    """
    options = options or options_for(len(feeds))
    if len(feeds) < 2 or not _few_bits(float_graph, quantized_graph, formats):
        return FittedScales(quantized_graph)
    judge = HeldOutJudge(float_graph, quantized_graph, feeds, options)
    graph = copy_graph(quantized_graph)
    layers, fitted = fit_layers(float_graph, graph, feeds, options, formats=formats, progress=progress)
    found, before = judge.errors(graph), judge.before
    samples = len(before.held.errors)
    gain = judge.compare(found)
    if not judge.accepts(gain, FITTED_SCALES):
        return FittedScales(quantized_graph, layers, 0, before.relative, before.relative, samples, gain)
    return FittedScales(graph, layers, fitted, before.relative, found.relative, samples, gain)


def fit_layers(
    float_graph: gs.Graph,
    graph: gs.Graph,
    feeds: Sequence[Feed],
    options: FinetuneOptions,
    *,
    formats: Sequence[Format] = (),
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Choose the scales of a quantized model's weights of few bits, in place, judging only layers.

    Return how many layers have such weights, and how many of them have new scales, or a new bias.
    """
    float_graph = shift_alike(float_graph, graph, formats)
    layers = _few_bits(float_graph, graph, formats)
    with open_sums(float_graph, graph, feeds, layers, options) as sums:
        walked = _Walk(graph, layers, sums, DAMPINGS if len(feeds) >= FEWEST_TO_SPARE else DAMPINGS[:1])
        return len(layers), sum(walked.visit(number, progress) for number in range(len(layers)))


def _few_bits(
    float_graph: gs.Graph, quantized_graph: gs.Graph, formats: Sequence[Format]
) -> list[MatchedLayer]:
    layers, _ = match_layers(float_graph, quantized_graph, formats)
    return [layer for layer in layers if has_few_bits([layer.weight.format])]


class _Walk:
    """Chooses the scales of one layer after another, in place."""

    def __init__(
        self, graph: gs.Graph, layers: Sequence[MatchedLayer], sums: GramReader, dampings: Sequence[float]
    ) -> None:
        self._graph, self._layers, self._sums, self._dampings = graph, layers, sums, dampings
        self._names = walk.Names(graph)

    def visit(self, number: int, progress: Progress | None) -> bool:
        """Choose the scales of a layer; return whether it has new ones, or a new bias."""
        layer = self._layers[number]
        fit, held = self._sums.read(number)
        before = current(layer)
        best, least = before, _error(held, before)
        for candidate in self._candidates(layer, before, of_products(layer, fit)):
            error = _error(held, candidate)
            if error < least:
                best, least = candidate, error
        if best is not before:
            write_layer(self._graph, layer, best, self._names)
            if layer.sharing_layers:
                self._sums.restart()
        self._sums.forget(number)
        if progress:
            progress(number + 1, len(self._layers))
        return best is not before

    def _candidates(
        self, layer: MatchedLayer, before: LayerSolution, fit: SharedGramStats
    ) -> Iterator[LayerSolution]:
        fmt = layer.weight.format
        dampings = self._dampings if fmt is not None and fmt.is_integer else DAMPINGS[:1]
        for damping in dampings if fit.count else ():
            yield best_scales(layer, before, fit, damping)


def _error(sums: SharedGramStats, solution: LayerSolution) -> float:
    return float(sums.error(solution.weights, solution.bias).sum())
