"""Fine-tuning a quantized model as a whole; its outputs on held-out samples never become worse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from transforms.finetune.acceptance import gain, harmed, is_significantly_better
from transforms.finetune.checkpoint import Checkpoint
from transforms.finetune.finetune_weights import Memory, Progress, TunedLayers, finetune_weights
from transforms.finetune.options import FEW, FinetuneOptions, is_held_out
from transforms.finetune.output_error import Errors, OutputError
from transforms.finetune.put_back import SomeLayers, keep_harmless
from transforms.model.copy_graph import copy_graph
from transforms.run.shared_steps import StepSharing, kept_open

_LEAST_JUDGED, _LEAST_FITTED = 32, 4
"""Least number of samples on which outputs are compared, in all and of those that weights were fitted to."""


@dataclass
class TunedModel:
    """The better model, the errors of its outputs on held-out samples before and after, and its layers.

    ``attempt`` names the attempt that was accepted, or is None if the model is unchanged. ``put_back`` are
    the numbers of layers that have their old weights again, for all together did not pass; ``blocked`` is the
    output that they harmed most, None if they harmed none.
    """

    graph: gs.Graph
    before: float
    after: float
    attempt: str | None
    walk: TunedLayers
    put_back: frozenset[int] = frozenset()
    blocked: str | None = None


def finetune_model(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: FinetuneOptions | None = None,
    *,
    formats: Sequence[Format] = (),
    checkpoint: Checkpoint | None = None,
    sharing: StepSharing | None = None,
    progress: Progress | None = None,
) -> TunedModel:
    """Return a quantized model with tuned weights and biases, or the same one unless that is better.

    Weights are tuned with scales and exponents chosen anew; unless the outputs improve significantly
    (:mod:`transforms.finetune.acceptance`), with the present ones, and at last biases alone. Of layers that
    together harm an output, those that do no harm are a model of their own; the best model is returned.
    ``float_graph`` is the float model in the form that was quantized
    (:func:`transforms.finetune.float_reference.float_reference`), ``formats`` are those that it was quantized
    to, beyond those that the metadata of a file name. Neither graph is changed. A ``checkpoint`` is also
    written when the work is interrupted. ``sharing``: as of
    :func:`transforms.finetune.finetune_weights.finetune_weights`.

    Raises ValueError if no layer can be tuned, and as
    :func:`transforms.finetune.finetune_weights.finetune_weights`.
    """
    options = options or FinetuneOptions()
    _refuse(float_graph, quantized_graph)
    acceptance = _AcceptanceTest(float_graph, quantized_graph, feeds, options)
    best = _Best(float_graph, quantized_graph, acceptance, formats)
    try:
        with kept_open(sharing) as shared:
            for attempt, chosen in _attempts(options):
                graph = copy_graph(quantized_graph)
                walked = finetune_weights(
                    float_graph,
                    graph,
                    feeds,
                    chosen,
                    formats=formats,
                    model_error=partial(acceptance.error, graph) if options.selective else None,
                    memory=Memory(checkpoint, attempt) if checkpoint else None,
                    sharing=shared,
                    progress=progress,
                )
                if best.passes(graph, attempt, walked, chosen):
                    break
    finally:
        if checkpoint:
            checkpoint.write()
    return best.model


class _Best:
    """The best model so far, at first the given one."""

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        acceptance: _AcceptanceTest,
        formats: Sequence[Format],
    ) -> None:
        before = acceptance.before
        self.model = TunedModel(quantized_graph, before, before, None, TunedLayers())
        self._models, self._acceptance, self._formats = (float_graph, quantized_graph), acceptance, formats
        self._gain, self._tried = 0.0, 0

    def passes(self, graph: gs.Graph, attempt: str, walked: TunedLayers, options: FinetuneOptions) -> bool:
        """Return whether a model with all layers tuned passes; if not, try some of them."""
        tuned, walked.matched = walked.matched, []
        errors = self._acceptance.each(graph)
        harmed = self._acceptance.harmed(errors)
        found = TunedModel(graph, self._acceptance.before, 0.0, attempt, walked)
        passes = self._take(found, errors)
        if not passes:
            blocked = harmed[0] if harmed else None
            if self.model.attempt is None:
                self.model = dataclasses.replace(self.model, walk=walked, blocked=blocked)
            changed = [i for i, layer in enumerate(walked.layers) if layer.is_kept]
            if changed and self._acceptance.can_choose:
                tried = SomeLayers(self._models, tuned, changed, self._formats, options.op_types)
                graph, kept = keep_harmless(tried, frozenset(harmed), self._acceptance.harmless_gain)
                put_back = frozenset(changed) - kept
                found = dataclasses.replace(found, graph=graph, put_back=put_back, blocked=blocked)
                if kept:
                    self._take(found, self._acceptance.each(graph))
        return passes

    def _take(self, found: TunedModel, errors: Errors) -> bool:
        """Keep a model if it passes and is better than the best; return whether it passes."""
        passes = self._acceptance.passes(errors, self._tried)
        self._tried += 1
        gain = self._acceptance.gain(errors)
        if passes and (gain > self._gain or self.model.attempt is None):
            found.after = self._acceptance.of_held_out(errors)
            self.model, self._gain = found, gain
        return passes


class _AcceptanceTest:
    """The outputs on held-out samples, and on some of those that weights are fitted to."""

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        feeds: Sequence[Feed],
        options: FinetuneOptions,
    ) -> None:
        held = [i for i in range(len(feeds)) if is_held_out(i, len(feeds), options)]
        others = sorted(set(range(len(feeds))) - set(held))
        count = min(len(others), max(_LEAST_JUDGED - len(held), _LEAST_FITTED))
        places = held + [others[i * len(others) // count] for i in range(count)]
        self._held = np.arange(len(places)) < len(held)
        self._errors = OutputError(float_graph, [feeds[i] for i in places], options.output_index, options.run)
        self._first = self._errors.each(quantized_graph)

    @property
    def before(self) -> float:
        """The error of the original model on held-out samples."""
        return self.of_held_out(self._first)

    @property
    def can_choose(self) -> bool:
        """Whether there are samples enough to choose layers by: of few, one choice of many fits by chance."""
        return bool(self._held.sum() >= FEW)

    def each(self, graph: gs.Graph) -> Errors:
        """Return the errors of a model on all samples that are compared."""
        return self._errors.each(graph)

    def of_held_out(self, errors: Errors) -> float:
        """Return the error on held-out samples alone."""
        return errors.of(self._held).relative

    def error(self, graph: gs.Graph) -> float:
        """Return the error of a model on held-out samples."""
        return self.of_held_out(self.each(graph))

    def passes(self, after: Errors, tried: int) -> bool:
        """Return whether errors are significantly less; ``tried``: how many models were tested before."""
        return is_significantly_better(self._first, after, self._held, tried)

    def gain(self, after: Errors) -> float:
        """Return the gain on held-out samples, in dB."""
        return gain(self._first, after, self._held)

    def harmed(self, after: Errors) -> list[str]:
        """Return the outputs that became worse, the worst first."""
        return [self._errors.names[i] for i in harmed(self._first, after, self._held)]

    def harmless_gain(self, graph: gs.Graph) -> float | None:
        """Return the gain of a model on all samples, in dB; None if an output became worse."""
        after = self.each(graph)
        everything = np.ones_like(self._held)
        return None if len(harmed(self._first, after, self._held)) else gain(self._first, after, everything)


def _attempts(options: FinetuneOptions) -> Iterator[tuple[str, FinetuneOptions]]:
    if options.weights and options.rescale:
        yield "weights, biases and scales", options
    if options.weights:
        yield "weights and biases", dataclasses.replace(options, rescale=False)
    yield "biases", dataclasses.replace(options, weights=False)


def _refuse(float_graph: gs.Graph, quantized_graph: gs.Graph) -> None:
    for what in ("inputs", "outputs"):
        names = [[t.name for t in getattr(g, what)] for g in (float_graph, quantized_graph)]
        if set(names[0]) != set(names[1]):
            missing = sorted(set(names[0]) ^ set(names[1]))[0]
            raise ValueError(f"the models have different {what}: '{missing}' is in one of them only")
