"""Round weights to few bits so that layer outputs change least: GPTQ, layer after layer.

The algorithm for one layer is in :mod:`ops.rounding.gptq`, after the paper (arXiv 2210.17323). Layers are
visited in execution order, each with its inputs in the quantized model so far. Scales and shared exponents
minimize the error weighted by squared inputs; the mean of the remaining error goes into the bias. Outputs of
the model do not decide: in W4A8 all of 13 models gained 1.1 dB or more on unseen samples (with 8 samples),
none of nine lost with two; with blocks of few bits most gained, and none lost more than 1.2 dB (``python -m
tests.benchmarks.accuracy_table measure FILE --presets W4A8 MX6``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array, FloatArray
from ops.formats import Format
from ops.rounding import Quadratic, RowQuadratic, gptq, quadratic
from transforms.finetune.collect_gram import GramReader, open_sums
from transforms.finetune.finetune_weights import of_products
from transforms.finetune.finished_layers import LayerFiles
from transforms.finetune.layer_stats import SharedGramStats
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.tune_layer import LayerSolution, some_outputs, with_bias
from transforms.finetune.weight_grids import suited_grid
from transforms.finetune.write_layer import current, write_layer
from transforms.full_range.share_shifts import shift_alike
from transforms.graph import walk
from transforms.judge.constants import DAMPINGS
from transforms.judge.sample_roles import fitted_every
from transforms.layers.match_layers import match_layers
from transforms.layers.matched_layer import MatchedLayer
from transforms.run.events import Progress
from transforms.runtime.session import RunOptions
from transforms.scheme.fitted_weights import has_few_bits

_MEMORY = 1 << 27


def options_for(
    samples: int, run: RunOptions | None = None, memory_limit: int | None = None
) -> FinetuneOptions:
    """Return the options of a run in bounded memory: by default 128 MiB for tensors of each model.

    Half of the ``samples`` are held out; if there are few, every fifth.
    """
    memory, run, every = memory_limit or _MEMORY, run or RunOptions(), fitted_every(samples)
    return FinetuneOptions(memory_limit=memory, run=run, held_out=every)


def fit_weights(
    float_graph: gs.Graph,
    graph: gs.Graph,
    feeds: Sequence[Feed],
    options: FinetuneOptions | None = None,
    *,
    formats: Sequence[Format] = (),
    progress: Progress | None = None,
    see: Callable[[str, int, int], None] | None = None,
    files: LayerFiles | None = None,
    rounds: Callable[[Format | None], bool] = has_few_bits,
) -> tuple[int, int]:
    """Round weights of a quantized model to preserve the outputs of their layers, in place.

    If some weights have few bits, all are rounded: later layers compensate some of the error of earlier
    ones. Else only those of the formats that ``rounds`` selects. Returns the number of layers, and of those
    that changed: each must be closer to its float outputs on held-out samples. Weights, scales and biases of
    the layers of :func:`transforms.layers.match_layers.match_layers` change. Nothing is done for fewer than
    two samples, or without such weights. ``float_graph`` is the float model in the form that was quantized,
    ``formats`` as in :func:`transforms.finetune.finetune_model.finetune_model`; ``progress`` is called with
    how many layers of how many are done, ``see`` with the name of each layer, its rows and its inputs.
    Layers in ``files`` get the weights stored there; the others are added.

    Raises ValueError for a model that fails on a sample.
    """
    if len(feeds) < 2:
        return 0, 0
    options = options or options_for(len(feeds))
    float_graph = shift_alike(float_graph, graph, formats)
    layers, _ = match_layers(float_graph, graph, formats)
    if not any(has_few_bits(layer.weight.format) for layer in layers):
        layers = [layer for layer in layers if rounds(layer.weight.format)]
    if not layers:
        return 0, 0
    with open_sums(float_graph, graph, feeds, layers, options) as sums:
        walked = _Walk(graph, layers, sums, see, files)
        return len(layers), sum(walked.visit(number, progress) for number in range(len(layers)))


class _Walk:
    """Rounds the weights of one layer after another, in place."""

    def __init__(
        self,
        graph: gs.Graph,
        layers: Sequence[MatchedLayer],
        sums: GramReader,
        see: Callable[[str, int, int], None] | None,
        files: LayerFiles | None,
    ) -> None:
        self._graph, self._layers, self._sums, self._see = graph, layers, sums, see
        self._files = files
        self._names = walk.Names(graph)

    def visit(self, number: int, progress: Progress | None) -> bool:
        """Round the weights of a layer; return whether its weights or its bias changed."""
        layer = self._layers[number]
        before = current(layer)
        best, rows = self._best(number, before)
        if self._see:
            self._see(layer.name, rows, before.weights.shape[-1])
        if best is not before:
            write_layer(self._graph, layer, best, self._names)
            if layer.sharing_layers:
                self._sums.restart()
        self._sums.forget(number)
        if progress:
            progress(number + 1, len(self._layers))
        return best is not before

    def _best(self, number: int, before: LayerSolution) -> tuple[LayerSolution, int]:
        """Return the weights of a layer, computed now or by an interrupted run, and its number of rows."""
        stored = self._files and self._files.get(number, before)
        if stored:
            self._sums.skip(number)
            return stored[0], int(stored[1][0])
        fit, held = self._sums.read(number)
        rows = int(fit.count + held.count)
        layer = self._layers[number]
        best = _rounded(layer, before, of_products(layer, fit), held)
        if self._files:
            self._files.put(number, None if best is before else best, (rows,))
        return best, rows


def _rounded(
    layer: MatchedLayer, before: LayerSolution, fit: SharedGramStats, held: SharedGramStats
) -> LayerSolution:
    """Return weights with the damping that is best on held-out rows, or the old ones if they are better.

    If there are many outputs, some decide. Targets are computed in float32, which grids of few bits allow.
    """
    if not fit.count:
        return before
    # as in the paper, the grid is chosen first; the objective is the layer's own, from sums over rows
    packed = layer.float_weight
    start = packed.reshape(*packed.shape[:2], -1)
    part = some_outputs(start.shape[1])
    few, judged = fit.of_outputs(part), held.of_outputs(part)
    sums = few.free()
    grid, _ = suited_grid(layer, sums.importance, fit.bias(start), part)
    problem = sums.problem(start[:, part])

    def _error(weights: FloatArray, bias: Float64Array) -> float:
        return float(judged.error(weights, bias).sum())

    def _error_of(form: Quadratic | RowQuadratic) -> float:
        weights = gptq(form, grid.rows(part))
        return _error(weights, few.bias(weights))

    # the paper dampens H by 1 % of its mean diagonal; here held-out rows choose the damping
    forms = [quadratic(problem, damping, shift=True, solve=sums.solver) for damping in DAMPINGS]
    errors = [_error_of(form) for form in forms]
    if min(errors) >= _error(before.weights[:, part], before.bias[:, part]):
        return before
    every = fit.joined(of_products(layer, held))
    return _rounded_by(layer, every, DAMPINGS[int(np.argmin(errors))])


def _rounded_by(layer: MatchedLayer, stats: SharedGramStats, damping: float) -> LayerSolution:
    """Return all outputs with the chosen damping, using all rows, including those that chose it.

    The bias absorbs the mean of the remaining errors.
    """
    packed = layer.float_weight
    start = packed.reshape(*packed.shape[:2], -1)
    sums = stats.free()
    grid, scale = suited_grid(layer, sums.importance, stats.bias(start))
    form = quadratic(sums.problem(start), damping, shift=True, solve=sums.solver)
    return with_bias(layer, stats, "rounded by outputs", gptq(form, grid), scale)
