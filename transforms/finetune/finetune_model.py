"""Fine-tune a whole quantized model, judge it by its outputs, and keep it only if they improve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.finished_layers import LayerFiles
from transforms.finetune.held_out import HeldOutJudge, Judged
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.put_back import Layers, SwitchedLayers, keep_halves
from transforms.finetune.tune_layer import AS_IT_WAS, BIAS
from transforms.finetune.tuned import TunedLayers, TunedModel
from transforms.full_range.share_shifts import on_full_range, shift_alike
from transforms.full_range.shift_tensors import count_added
from transforms.layers.match_layers import match_layers, of_operators
from transforms.model.copy_graph import copy_graph
from transforms.run.events import Progress
from transforms.run.run_each import products_on_one_thread
from transforms.run.workers import Workers
from transforms.scheme.scheme_values import OFF, PADDED

ALL, BIASES = "weights, biases and scales", "biases"
"""The attempts, named after the constants they tune."""

FilesOf = Callable[[str], LayerFiles | None]
"""Returns the files for the layers of an attempt, by its name."""


@products_on_one_thread()
def finetune_model(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: FinetuneOptions | None = None,
    *,
    formats: Sequence[Format] = (),
    workers: Workers | None = None,
    progress: Progress | None = None,
    files: FilesOf | None = None,
) -> TunedModel:
    """Return a quantized model with tuned weights and biases, or the same model if that is not better.

    ``auto`` first lets int8 tensors use the full range (:mod:`transforms.full_range.share_shifts`). Weights
    are tuned with scales and exponents chosen again; if that is not accepted, only biases. A tuned model is
    accepted by the rule of :class:`transforms.judge.errors.Gain` on held-out samples
    (:mod:`transforms.finetune.held_out`); if an output regresses, layers are reverted by halves.
    ``float_graph`` is the float model in the form that was quantized
    (:func:`transforms.conversion.float_reference.float_reference`), ``formats`` are the formats it was
    quantized to, besides those named in the file's metadata. Neither graph is changed. ``workers``: as in
    :func:`transforms.finetune.finetune_weights.finetune_weights`; ``files``: where layers are stored.

    Raises ValueError if no layer can be tuned, and as
    :func:`transforms.finetune.finetune_weights.finetune_weights`.
    """
    _refuse(float_graph, quantized_graph)
    options = options or FinetuneOptions()
    graphs = float_graph, quantized_graph
    judge = HeldOutJudge(*graphs, feeds, options, options.output_index)
    float_graph, spread = shift_alike(*graphs, formats), 0
    if options.algorithm == "auto" and options.rescale and options.full_range != OFF:
        more = feeds if options.full_range == PADDED else None
        pair = float_graph, quantized_graph
        float_graph, quantized_graph, spread = on_full_range(*pair, formats, padded_for=more)
    tuner = _Tuner((float_graph, quantized_graph), feeds, formats, judge, workers, progress, files)
    done = tuner.fit(ALL if options.weights else BIASES, options)
    if done.attempt is None and any(layer.what not in (AS_IT_WAS, BIAS) for layer in done.walk.layers):
        biases = tuner.fit(BIASES, replace(options, weights=False))
        done = biases if biases.attempt else done
    if done.attempt is None and spread:
        without = replace(options, full_range=OFF)
        return finetune_model(
            *graphs, feeds, without, formats=formats, workers=workers, progress=progress, files=files
        )
    if done.attempt is None:
        return replace(done, graph=graphs[1])
    added = count_added(quantized_graph) - count_added(graphs[1]) if spread else 0
    return replace(done, spread=spread, added=added)


@dataclass(frozen=True)
class _Tuner:
    """Tunes copies of a quantized model and judges them."""

    models: tuple[gs.Graph, gs.Graph]
    feeds: Sequence[Feed]
    formats: Sequence[Format]
    judge: HeldOutJudge
    workers: Workers | None
    progress: Progress | None
    files: FilesOf | None

    def fit(self, attempt: str, options: FinetuneOptions) -> TunedModel:
        """Return a tuned model, or the report on its layers if it is not accepted."""
        judge, graph = self.judge, copy_graph(self.models[1])
        walked = finetune_weights(
            self.models[0],
            graph,
            self.feeds,
            options,
            formats=self.formats,
            model_error=(lambda: judge.errors(graph).relative) if options.selective else None,
            workers=self.workers,
            progress=self.progress,
            files=self.files and self.files(f"{attempt} {options}"),
        )
        changed, errors = sorted(walked.changed), judge.errors(graph)
        tuned = self._judged(graph, errors, walked, attempt)
        if not changed or tuned.gain is None or not tuned.gain.is_regression:
            return tuned
        tuned = replace(tuned, blocked=judge.regressed(errors))
        tuned_numbers = keep_halves(changed, partial(self._gain, self._switched(walked, options)))
        if not tuned_numbers:
            return tuned
        switched = self._switched(walked, options)  # reverted layers may have got a bias of zero
        switched.switch(tuned_numbers)
        better = self._judged(switched.graph, judge.errors(switched.graph), walked, attempt)
        if better.attempt is None:
            return tuned
        return replace(better, put_back=frozenset(changed) - tuned_numbers, blocked=tuned.blocked)

    def _judged(self, graph: gs.Graph, errors: Judged, walked: TunedLayers, attempt: str) -> TunedModel:
        judge, before = self.judge, self.judge.figure(self.judge.before)
        gain = judge.compare(errors)
        accepted = (attempt, judge.figure(errors)) if judge.accepts(gain) else (None, before)
        tuned = TunedModel(graph, before, accepted[1], accepted[0], walked, gain)
        return replace(tuned, notes=judge.notes, of_tokens=judge.of_tokens)

    def _switched(self, walked: TunedLayers, options: FinetuneOptions) -> SwitchedLayers:
        graph = copy_graph(self.models[1])
        layers, _ = match_layers(self.models[0], graph, self.formats)
        return SwitchedLayers(graph, of_operators(layers, options.op_types)[0], walked.matched)

    def _gain(self, switched: SwitchedLayers, layers: Layers) -> float | None:
        switched.switch(layers)
        gain = self.judge.compare(self.judge.errors(switched.graph))
        return None if gain.is_regression else gain.decibels


def _refuse(float_graph: gs.Graph, quantized_graph: gs.Graph) -> None:
    for what in ("inputs", "outputs"):
        one, two = ({t.name for t in getattr(g, what)} for g in (float_graph, quantized_graph))
        if one != two:
            raise ValueError(f"the models have different {what}: '{min(one ^ two)}' is in one of them only")
