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
from transforms.finetune.acceptance import is_significantly_better
from transforms.finetune.checkpoint import Checkpoint
from transforms.finetune.finetune_weights import Memory, Progress, TunedLayers, finetune_weights
from transforms.finetune.options import FinetuneOptions, is_held_out
from transforms.finetune.output_error import OutputError
from transforms.model.copy_graph import copy_graph
from transforms.run.shared_steps import StepSharing, kept_open

_LEAST_JUDGED, _LEAST_FITTED = 16, 4
"""Least number of samples on which outputs are compared, in all and of those that weights were fitted to."""


@dataclass
class TunedModel:
    """The better model, the errors of its outputs on held-out samples before and after, and its layers.

    ``attempt`` names the attempt that was accepted, or is None if the model is unchanged.
    """

    graph: gs.Graph
    before: float
    after: float
    attempt: str | None
    walk: TunedLayers


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
    (:mod:`transforms.finetune.acceptance`), with the present ones, and at last biases alone.
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
    walked = TunedLayers()
    try:
        with kept_open(sharing) as shared:
            for tried, (attempt, chosen) in enumerate(_attempts(options)):
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
                after = acceptance.after(graph, tried)
                if after is not None:
                    return TunedModel(graph, acceptance.before, after, attempt, walked)
    finally:
        if checkpoint:
            checkpoint.write()
    return TunedModel(quantized_graph, acceptance.before, acceptance.before, None, walked)


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
        return self._first.of(self._held).relative

    def error(self, graph: gs.Graph) -> float:
        """Return the error of a model on held-out samples."""
        return self._errors.each(graph).of(self._held).relative

    def after(self, graph: gs.Graph, tried: int) -> float | None:
        """Return the error of a model on held-out samples; None if it is not significantly better.

        ``tried``: how many models were rejected before.
        """
        after = self._errors.each(graph)
        is_better = is_significantly_better(self._first, after, self._held, tried)
        return after.of(self._held).relative if is_better else None


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
