"""Steps that tune a quantized model: load the quantized and the float model, tune the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from transforms.conversion.float_reference import float_reference
from transforms.conversion.quantized_already import refuse_swapped, why_quantized
from transforms.conversion.rows import Row, shows
from transforms.finetune.finished_layers import LayerFiles
from transforms.finetune.options import FinetuneOptions
from transforms.graph.typed import info_of
from transforms.model.graph_proto import model_hash
from transforms.pipelines.finished import finished_layers
from transforms.pipelines.for_runtime import STORE, TRY_OUT
from transforms.pipelines.load import tell_fitting
from transforms.pipelines.part import part
from transforms.pipelines.recipes import COMPARE, GATE
from transforms.pipelines.source import Source
from transforms.pipelines.tune import tuned
from transforms.pipelines.work import Work, WorkRow
from transforms.run.feeds import Feeds, batch_feeds
from transforms.runtime.inputs import model_inputs
from transforms.scheme.sources import recorded_scheme


@dataclass
class TuneWork(Work):
    """A tuning of a quantized model; ``source`` is the float model.

    ``quantized``: the model that was quantized from it. ``how``: the algorithm and its options.
    ``batch_size``: samples in a batch, if the first dimension of inputs is free. ``fed``: the number of
    samples, after the step ``tune_quantized``.
    """

    quantized: Source | None = None
    how: FinetuneOptions = field(default_factory=FinetuneOptions)
    batch_size: int = 1
    fed: int = 0


def load_pair(work: Work) -> None:
    """Step: read the quantized model, and the float model in the form that was quantized.

    Raises ModelError or OSError for a file that cannot be read, ValueError for models that do not match.
    """
    tuning = _of_tuning(work)
    work.events.phase("loading")
    assert tuning.quantized is not None and work.source is not None, "both are needed"
    work.graph = tuning.quantized.load()
    work.record.source_sha256 = getattr(work.graph, "source_sha256", None)
    if not why_quantized(work.graph):
        refuse_swapped(work.source.load(), work.graph, str(work.source), str(tuning.quantized))
    work.base.graph = float_reference(work.source.load, work.graph)
    if (scheme := recorded_scheme(work.graph)) is not None:
        work.scheme = scheme
    tell_fitting(work)
    if work.options.goal is not None and work.data is not None:
        part(work, work.data)
    work.record.notes += info_of(work.graph).notes


def tune_quantized(work: Work) -> None:
    """Step: tune the weights; the model is not changed if the outputs do not gain.

    Raises ValueError for samples that do not fit, or that all go into one batch.
    """
    tuning = _of_tuning(work)
    if work.data is None or work.base.graph is None:
        raise ValueError("tuning needs samples, and the step 'load_pair' before")
    feeds = work.data.feeds(work.base.graph)
    batches = _batches(work.base.graph, feeds, tuning.batch_size)
    tuning.fed = len(feeds)
    shared = work.data.workers
    done = tuned(
        work.base.graph,
        work.graph,
        batches,
        tuning.how,
        work.events,
        workers=shared,
        files=partial(_files, tuning, work.base.graph),
    )
    work.record.tuned, work.record.tuned_on, work.graph = done, tuning.fed, done.graph


TUNE: tuple[WorkRow, ...] = (
    Row(load_pair, phases=shows("loading")),
    Row(tune_quantized, needs={"base.graph": "load_pair"}, phases=shows("tuning")),
    GATE,
    STORE,
    TRY_OUT,
    COMPARE,
)
"""Tuning the weights of a model that is quantized already."""


def _files(work: TuneWork, reference: gs.Graph, attempt: str) -> LayerFiles | None:
    if work.options.finished is None:
        return None  # without hashing the quantized model
    return finished_layers(work, reference, model_hash(work.graph), str(work.batch_size), attempt)


def _batches(twin: gs.Graph, feeds: Feeds, size: int) -> list[Mapping[str, np.ndarray]]:
    """Return batches of samples; ValueError if several samples all go into one batch."""
    batches = batch_feeds([feed for _, feed in feeds], model_inputs(twin), size)
    if len(batches) == 1 < len(feeds):
        needed = "one batch to fit to, one to judge by are needed"
        raise ValueError(f"batch size {size} puts all {len(feeds)} samples together: {needed}")
    return batches


def _of_tuning(work: Work) -> TuneWork:
    if not isinstance(work, TuneWork):
        raise TypeError("this step takes a TuneWork")
    return work
