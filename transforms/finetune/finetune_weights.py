"""Tune the weights of a quantized model layer by layer to reproduce the outputs of the float model.

Layers are tuned in execution order. Each is fitted to the outputs of the float layer, given its inputs in
the quantized model as tuned so far, by linear algebra on sums over rows (:mod:`transforms.finetune.gram`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from transforms.finetune.collect_gram import GramReader, open_sums
from transforms.finetune.finished_layers import LayerFiles
from transforms.finetune.layer_stats import SharedGramStats
from transforms.finetune.layer_targets import reads_activation_product
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.tune_layer import LayerSolution, Tuned, some_outputs, tune_layer
from transforms.finetune.tuned import LayerReport, TunedLayers
from transforms.finetune.write_layer import current, remove_bias, write_layer
from transforms.graph import walk
from transforms.layers.match_layers import match_layers, of_operators
from transforms.layers.matched_layer import MatchedLayer
from transforms.model.model_error import NothingToDoError
from transforms.run.events import Progress
from transforms.run.run_each import products_on_one_thread
from transforms.run.workers import Workers


@products_on_one_thread()
def finetune_weights(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: FinetuneOptions | None = None,
    *,
    formats: Sequence[Format] = (),
    model_error: Callable[[], float] | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    files: LayerFiles | None = None,
) -> TunedLayers:
    """Tune the layers that :func:`transforms.layers.match_layers.match_layers` finds, in place.

    A layer gets new weights if they are better on the held-out samples and, if ``model_error`` is given,
    lower it. ``formats`` are the formats of the quantized model. ``progress`` receives how many layers of
    how many are done, and the name of the last one. ``workers`` run the models, if given, with the same
    result. Layers in ``files`` get the weights stored there; the others are added.

    Raises ValueError for fewer than two samples, a model that fails on one, models without a tunable layer,
    and operator types without such a layer.
    """
    options = options or FinetuneOptions()
    if len(feeds) < 2:
        raise ValueError(f"{len(feeds)} sample, at least 2 are needed: one to fit to, one to judge by")
    layers, left = match_layers(float_graph, quantized_graph, formats)
    if not layers:
        if not left:
            raise NothingToDoError("Nothing to do: no dot product has quantized weights to tune.")
        first = f": '{left[0].name}' ({left[0].op}): {left[0].reason}" if left else ""
        raise ValueError(f"no layer can be tuned, of {len(left)} dot products{first}")
    layers, skipped = of_operators(layers, options.op_types)
    done = TunedLayers(left_alone=left + skipped, matched=layers)
    with open_sums(float_graph, quantized_graph, feeds, layers, options, workers) as sums:
        walked = _LayerwiseTuner(quantized_graph, layers, sums, options, model_error, files)
        for number in range(len(layers)):
            report = walked.visit(number)
            done.layers.append(report)
            if progress:
                progress(number + 1, len(layers), report.name)
        done.largest_step = sums.largest_step
    return done


_ADD = 0.95
"""Largest ratio of held-out errors that justifies an Add after a MatMul, which is one more node to run."""


class _LayerwiseTuner:
    """Tunes one layer after another."""

    def __init__(
        self,
        quantized_graph: gs.Graph,
        layers: Sequence[MatchedLayer],
        sums: GramReader,
        options: FinetuneOptions,
        model_error: Callable[[], float] | None,
        files: LayerFiles | None,
    ) -> None:
        self._graph, self._layers, self._sums, self._options = quantized_graph, layers, sums, options
        self._names = walk.Names(quantized_graph)
        self._model_error = model_error
        self._least_error: float | None = None
        self._files = None if model_error else files  # with it, what is kept depends on earlier layers

    def visit(self, number: int) -> LayerReport:
        """Tune a layer; return the report."""
        if self._model_error and self._least_error is None:
            self._least_error = self._model_error()
        report = self._tune(number)
        if self._layers[number].sharing_layers and not report.is_kept:
            self._sums.restart()  # nodes between its users have run, but their weights are tuned later
        self._sums.forget(number)
        return report

    def _tune(self, number: int) -> LayerReport:
        start = time.perf_counter()
        layer = self._layers[number]
        tuned = self._known(layer, number) or self._best(layer, number)
        if tuned.after < tuned.before:
            tuned = self._write(layer, number, tuned)
        seconds = time.perf_counter() - start
        numbers = tuned.before, tuned.after, tuned.power
        words, of_inputs = tuned.best.what, tuned.of_inputs
        return LayerReport(_title(layer), layer.node.op, *numbers, words, seconds, of_inputs)

    def _known(self, layer: MatchedLayer, number: int) -> Tuned | None:
        """Return the result that an interrupted run has stored for a layer, or None.

        None for layers that share a weight: whether it is kept depends on their later inputs.
        """
        stored = self._files.get(number, current(layer)) if self._files and not layer.sharing_layers else None
        if stored is None:
            return None
        self._sums.skip(number)
        return Tuned(stored[0], *stored[1])

    def _best(self, layer: MatchedLayer, number: int) -> Tuned:
        tuned = self._searched(layer, number)
        if self._files and not layer.sharing_layers:
            figures = tuned.before, tuned.after, tuned.power, tuned.of_inputs
            self._files.put(number, tuned.best if tuned.after < tuned.before else None, figures)
        return tuned

    def _searched(self, layer: MatchedLayer, number: int) -> Tuned:
        fit, held = self._sums.read(number)
        fit, before = of_products(layer, fit), current(layer)
        tuned = tune_layer(layer, before, fit, held, self._options)
        if all(held.has_bias) or not all(user.bias for user in layer.users):
            return tuned
        fit, held, best = fit.freed(), held.freed(), tuned.best.weights
        is_large = some_outputs(layer.layer.size[1]).step > 1
        if is_large and float(held.error(best, fit.bias(best)).sum()) > (1 + _ADD) / 2 * tuned.after:
            return tuned  # the mean of what is left is too small for another round
        with_add = tune_layer(layer, before, fit, held, self._options)
        return with_add if with_add.after < _ADD * tuned.after else tuned

    def _write(self, layer: MatchedLayer, number: int, tuned: Tuned) -> Tuned:
        before, after = current(layer), tuned.after
        bare = [
            layer_user
            for layer_user in layer.users
            if layer_user.bias and not layer_user.bias.stored and not layer_user.bias.is_extra
        ]
        self._put(layer, tuned.best)
        if layer.sharing_layers:  # the inputs of some may depend on others, and have changed
            held = self._sums.read(number)[1]
            after = float(held.error(tuned.best.weights, tuned.best.bias).sum())
        if after < tuned.before and self._is_better():
            return Tuned(tuned.best, tuned.before, after, tuned.power, tuned.of_inputs)
        self._put(layer, before)
        for user in bare:
            remove_bias(self._graph, user)
        return Tuned(before, tuned.before, tuned.before, tuned.power, tuned.of_inputs)

    def _put(self, layer: MatchedLayer, candidate: LayerSolution) -> None:
        write_layer(self._graph, layer, candidate, self._names)
        if layer.sharing_layers:
            self._sums.restart()  # nodes between the users ran with the old weights

    def _is_better(self) -> bool:
        """Return whether the model-level error, if any, improved."""
        if self._model_error is None or self._least_error is None:
            return True
        error = self._model_error()
        is_better, self._least_error = error < self._least_error, min(error, self._least_error)
        return is_better


def _title(layer: MatchedLayer) -> str:
    return f"{layer.name} and {len(layer.sharing_layers)} more" if layer.sharing_layers else layer.name


def of_products(layer: MatchedLayer, fit: SharedGramStats) -> SharedGramStats:
    """Fit users that read a product of computed tensors to correct only their own rounding."""
    shape = (*layer.float_weight.shape[:2], -1)
    parts = (
        part.of_layer(layer.float_weight.reshape(shape), user.float_bias)
        if reads_activation_product(user.source)
        else part
        for part, user in zip(fit.parts, layer.users, strict=True)
    )
    return SharedGramStats(tuple(parts), fit.has_bias)
