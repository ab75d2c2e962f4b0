"""Scales and shared exponents of weights of few bits, chosen by what they change in a layer's outputs.

Layers are visited in execution order, each on its inputs in the quantized model as it is by then. Weights
are rounded to nearest; of several scales for a channel or a block, the one is taken with which the layer
comes nearest to the outputs of the float layer, the mean of that difference going into the bias. Held-out
samples say whether weights are better kept near the float ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Feed
from ops.formats import Format
from transforms.all_codes.share_shifts import shift_alike
from transforms.finetune.acceptance import harmed, is_significantly_better
from transforms.finetune.collect_gram import GramReader, open_sums
from transforms.finetune.finetune_weights import of_products
from transforms.finetune.gram import SharedGramStats
from transforms.finetune.options import FEW, LayerwiseOptions, is_held_out
from transforms.finetune.output_error import Errors, OutputError
from transforms.finetune.scale_candidates import best_scales
from transforms.finetune.tune_layer import LayerSolution
from transforms.finetune.write_layer import current, write_layer
from transforms.graph import walk
from transforms.layers.match_layers import match_layers
from transforms.layers.matched_layer import MatchedLayer
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import RunOptions

FEW_BITS = 7
"""Bits of an element, with its share of exponents, below which scales are chosen by outputs."""

DAMPINGS = (0.0, 0.1)
"""How firmly weights on integers stay near the float ones: samples may say too little about some. The second
is tried with six held-out samples or more: a single one chose it wrongly, which cost 0.5 dB on unseen ones.
Exponents of blocks can only be one off; with it networks lost up to 0.6 dB."""

_MEMORY = 1 << 30
MOST_INPUTS = 4096
"""Inputs of a layer up to which its Gram matrix is made; of more, its diagonal."""

MOST_SAMPLES = 64
"""Samples that are enough to choose by."""


def options_for(run: RunOptions | None = None, memory_limit: int | None = None) -> LayerwiseOptions:
    """Return the options of a run in bounded memory: 1 GiB for tensors of each model, or as told."""
    return LayerwiseOptions(
        memory_limit=memory_limit or _MEMORY, most_inputs=MOST_INPUTS, run=run or RunOptions()
    )


_LEFT = 0.7
"""Share of the error of outputs that may be left: 1.5 dB. All samples are like those that scales are chosen
by; a sentence encoder that gained 1.2 dB on such sentences lost as much on shorter ones."""

_LEFT_LEAST = 0.85
"""The same where held-out samples, which may be few, and all samples disagree: half of it, in dB."""

_TINY = float(np.finfo(np.float64).tiny)

Progress = Callable[[int, int], None]


@dataclass
class FittedScales:
    """The better model; layers with new scales, of how many; relative errors of outputs before and after.

    Errors are those on ``samples`` held-out samples. ``graph`` is the one that was given if the outputs did
    not improve.
    """

    graph: gs.Graph
    layers: int = 0
    fitted: int = 0
    before: float = 0.0
    after: float = 0.0
    samples: int = 0


def has_few_bits(formats: Sequence[Format | None]) -> bool:
    """Return whether weights in one of these formats have their scales chosen by outputs."""
    return any(fmt is not None and fmt.bits < FEW_BITS for fmt in formats)


def fit_scales(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: LayerwiseOptions | None = None,
    *,
    formats: Sequence[Format] = (),
    progress: Progress | None = None,
) -> FittedScales:
    """Return a quantized model whose weights of few bits have scales chosen by the outputs of their layers.

    Weights, scales and biases of :func:`transforms.layers.match_layers.match_layers`'s layers change, also
    biases that were corrected for other scales. The model is the one that was given unless its outputs gain
    enough (:func:`gained_enough`). Nothing is done for fewer than two samples. ``float_graph`` is the float
    model in the form that was quantized, ``formats`` as in
    :func:`transforms.finetune.finetune_model.finetune_model`. Neither graph is changed.

    Raises ValueError for a model that fails on a sample.
    """
    options, left = options or options_for(), FittedScales(quantized_graph)
    if len(feeds) < 2 or not _few_bits(float_graph, quantized_graph, formats):
        return left
    judged = _judged(len(feeds), options)
    held = np.array([is_held_out(i, len(feeds), options) for i in judged])
    errors = OutputError(float_graph, [feeds[i] for i in judged], None, options.run, known=quantized_graph)
    float_graph = shift_alike(float_graph, quantized_graph, formats)
    first = errors.each(quantized_graph)
    left = replace(left, before=_mean(first, held), after=_mean(first, held), samples=int(held.sum()))
    graph = copy_graph(quantized_graph)
    layers = _few_bits(float_graph, graph, formats)
    with open_sums(float_graph, graph, feeds, layers, options) as sums:
        walked = _Walk(graph, layers, sums, DAMPINGS if held.sum() >= FEW else DAMPINGS[:1])
        fitted = sum(walked.visit(number, progress) for number in range(len(layers)))
    after = errors.each(graph)
    if not gained_enough(first, after, held):
        return replace(left, layers=len(layers))
    return replace(left, graph=graph, layers=len(layers), fitted=fitted, after=_mean(after, held))


def gained_enough(before: Errors, after: Errors, held: NDArray[np.bool_]) -> bool:
    """Return whether outputs gained so much that other samples will gain, too.

    ``held`` marks the held-out samples. The mean gain has to be 1.5 dB on those or on all, half of it on
    both, and no output may lose on held-out ones. Six of them show that scales, a few numbers for thousands
    of rows, suit other samples; all samples show then that the gain is not luck. Fewer have to show both.
    """
    every = np.ones_like(held)
    shares = [_mean(after, part) / max(_mean(before, part), _TINY) for part in (held, every)]
    if not (min(shares) < _LEFT and max(shares) < _LEFT_LEAST):
        return False
    if len(harmed(before, after, held)):
        return False
    return is_significantly_better(before, after, held if held.sum() < FEW else every)


_LEAST_JUDGED = 16


def _judged(count: int, options: LayerwiseOptions) -> list[int]:
    """Return the numbers of the samples on which outputs are compared: held-out ones, and a few others."""
    held = [i for i in range(count) if is_held_out(i, count, options)]
    others = sorted(set(range(count)) - set(held))
    more = min(len(others), max(_LEAST_JUDGED - len(held), _LEAST_JUDGED // 4))
    return held + [others[i * len(others) // more] for i in range(more)]


def _mean(errors: Errors, part: NDArray[np.bool_]) -> float:
    return errors.of(part).relative


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
