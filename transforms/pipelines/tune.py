"""Step: tune the weights of the quantized model against the float model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from ops.rounding import Options as SolverOptions
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.tuned import TunedModel
from transforms.graph.embeddings import logits_of
from transforms.graph.typed import info_of
from transforms.judge.sample_roles import checking
from transforms.pipelines.finished import finished_layers
from transforms.pipelines.work import SCHEME_ENTRY, Work
from transforms.run.events import Events
from transforms.run.workers import Workers
from transforms.runtime.session import RunOptions
from transforms.scheme.finetune_rule import FinetuneRule

if TYPE_CHECKING:
    from transforms.finetune.finetune_model import FilesOf
    from transforms.finetune.tuned import TunedModel


def tune(work: Work) -> None:
    """Tune the weights as the scheme says; the model is not changed if the outputs do not gain.

    Raises ValueError without samples, or if they do not fit.
    """
    rule = work.options.tuning
    assert rule is not None, "entered for it"
    if work.data is None:
        raise ValueError(f"fine-tuning ({rule.algorithm}) needs samples")
    work.events.phase("reloading")
    reference = work.float_form()
    feeds = _tuned_on(work, reference, rule.data_size or None)
    output = None if rule.output_index < 0 else rule.output_index
    limit, formats = work.data.memory_limit, work.scheme.named_formats
    options = tuning_options(rule, work.options.run, output_index=output, memory_limit=limit)
    done = tuned(
        reference,
        work.graph,
        feeds,
        options,
        work.events,
        formats=formats,
        workers=work.data.workers,
        files=partial(finished_layers, work, reference),
    )
    work.record.tuned, work.record.tuned_on = done, len(feeds)
    if work.asked.auto_mixed_precision:  # keeps the scheme the first entry
        info_of(done.graph).metadata.setdefault(SCHEME_ENTRY, "")
    work.record.untuned = work.graph, work.scheme
    work.graph, work.scheme = done.graph, work.scheme.with_(finetune=rule)


def _tuned_on(work: Work, reference: gs.Graph, most: int | None) -> Sequence[Feed]:
    """Return the samples to tune on: of texts, without those that measure the final model."""
    assert work.data is not None, "looked at before"
    source = work.data.feeds(reference)
    if not logits_of(reference):
        return [feed for _, feed in islice(source, most)]
    feeds = [feed for _, feed in source]
    work.record.decisions.searched = True
    spared = checking(len(feeds), texts=True)
    return (feeds[: spared.start] + feeds[spared.stop :])[:most]


def tuned(
    float_graph: gs.Graph,
    graph: gs.Graph,
    feeds: Sequence[Feed],
    options: FinetuneOptions,
    events: Events,
    *,
    formats: Sequence[Format] = (),
    workers: Workers | None = None,
    files: FilesOf | None = None,
) -> TunedModel:
    """Return a model with tuned weights; ``events`` get the progress and the error of each layer."""
    from transforms.finetune.finetune_model import finetune_model  # imports take time that small jobs notice

    progress = events.phase("tuning", "layer")
    return finetune_model(
        float_graph, graph, feeds, options, formats=formats, workers=workers, progress=progress, files=files
    )


def tuning_options(rule: FinetuneRule, run: RunOptions, **more: Any) -> FinetuneOptions:
    """Return the options of a tuning by a rule; ``more``: further fields of the options."""
    solver = SolverOptions(
        iterations=rule.num_iterations, learning_rate=rule.learning_rate or None, early_stop=rule.early_stop
    )
    return FinetuneOptions(
        rule.algorithm,
        solver=solver,
        op_types=rule.target_op_type,
        following_relu=rule.following_relu,
        seed=rule.fixed_seed,
        run=run,
        selective=rule.selective_update,
        full_range=rule.full_range,
        **more,
    )
