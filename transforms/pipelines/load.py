"""Step: read the float model, and hold out samples if there is a target."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from glob import escape
from pathlib import Path

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration_data import CalibrationData
from transforms.files.spelling import as_option
from transforms.fix_shapes import fix_shapes
from transforms.graph.embeddings import logits_of, readers
from transforms.graph.selection import label_of
from transforms.judge.budget import MOST_NODES, has_many_nodes, too_large
from transforms.pipelines.asked import stores_tied
from transforms.pipelines.work import Work
from transforms.run.feeds import random_feeds
from transforms.run.samples import Samples
from transforms.runtime.inputs import model_inputs
from transforms.scheme import Scheme
from transforms.scheme.presets import find_preset
from transforms.scheme.scheme import FLOAT32
from transforms.scheme.targets import target


def load(work: Work) -> None:
    """Read the model, fix the shapes of its inputs as the scheme says, and split the samples.

    Embeddings that are stored in few bits later are excluded from the scheme. Raises ModelError or OSError
    for a file that cannot be read, ValueError for free dimensions that the target device does not support,
    for a model too large to choose layers for a target, and for tuning that gains nothing.
    """
    work.events.phase("loading")
    work.graph = read_float(work, work.scheme)
    work.record.source_sha256 = getattr(work.graph, "source_sha256", None)
    stays = not work.options.stores_tied and (work.scheme.is_dynamic or work.scheme.activation != FLOAT32)
    if stays or (work.options.embeddings and work.scheme.activation != FLOAT32):
        labels = dict.fromkeys(escape(label_of(node)) for node in readers(work.graph))
        excluded = (*work.asked.exclude_nodes, *labels)
        work.record.asked = work.asked
        work.asked = work.scheme = work.asked.with_(exclude_nodes=excluded)
    if work.options.random_data:
        assert work.data is not None, "says how random samples are run"
        feeds = random_feeds(model_inputs(work.graph), work.options.random_data)
        work.data = replace(work.data, source=feeds, decides=False)
    _refuse_tuning(work)
    tell_fitting(work)
    _compare_if_fast(work)
    _hold_out(work)


def read_float(work: Work, scheme: Scheme) -> gs.Graph:
    """Read the float model again, with the input shapes of a scheme; tie embeddings that are stored later."""
    assert work.source is not None, "a work without a source begins with a graph"
    graph = work.source.load()
    work.record.fixed = fix_shapes(graph, scheme.input_shapes)
    if scheme.target:
        from transforms.deploy.refuse import refuse_free

        refuse_free(graph, target(scheme.target))
    may_tie = stores_tied(work) and not scheme.is_dynamic and bool(logits_of(graph))
    if work.options.embeddings or may_tie:
        from transforms.store_embeddings import tie_embeddings

        tie_embeddings(graph)
    return graph


def tell_fitting(work: Work) -> None:
    """Emit notes on how images are read, and how arrays are converted to the inputs.

    The latter is known after reading the first sample.
    """
    data = work.data
    if data is None or not isinstance(data.source, str | os.PathLike | list):
        return
    if isinstance(data.source, list):
        _tell_changes(work, data)
    with suppress(ValueError, OSError):  # said where samples are read
        if not isinstance(data.source, list):
            _tell_changes(work, data)
        if samples := _files(work.graph, data):
            samples.tell_images(work.graph, work.events, data.run)


def _tell_changes(work: Work, data: CalibrationData) -> None:
    next(iter(data.feeds(work.graph)))
    for line in data.fitting.lines():
        work.events.note(line)


def _files(graph: gs.Graph, data: CalibrationData) -> Samples | None:
    """Return the samples that are files; None if there are none."""
    if isinstance(data.source, list):
        files = [Path(path) for path in data.source if isinstance(path, os.PathLike)]
        return Samples.of_files(files, model_inputs(graph), data.images) if files else None
    assert isinstance(data.source, str | os.PathLike), "asked for before"
    return Samples(Path(data.source), model_inputs(graph), data.images, data.limit)


def _compare_if_fast(work: Work) -> None:
    """Disable the comparison of outputs for a model with many nodes, which takes long to open."""
    may_compare = work.data is not None and work.options.may_compare and work.options.changes_last
    if (work.options.compares or may_compare) and has_many_nodes(work.graph):
        work.options = replace(work.options, compares=False, may_compare=False)
        more = f"more than {MOST_NODES:,} nodes; tools.evaluate compares them"
        work.events.note(f"Outputs not compared: {more}")


def _refuse_tuning(work: Work) -> None:
    """Raise ValueError for tuning a language model with only weights quantized: fitting is as good."""
    is_alone = work.scheme.format(work.scheme.activation) is None
    if (
        work.options.tuning is None
        or not is_alone
        or not work.scheme.has_few_bits
        or not logits_of(work.graph)
    ):
        return
    plain = str(work.options.recorded.get("config") or "").rpartition("_")[0]
    way = as_option("config", plain) if find_preset(plain) else "the scheme without [finetune]"
    raise ValueError(
        f"tuning {work.scheme.weight} weights alone of a language model gains nothing over {way} with"
        " samples, which rounds them by the outputs of layers in less time"
    )


def _hold_out(work: Work) -> None:
    """Split the samples for a target; ValueError for a too large model, or a fallback without effect."""
    goal = work.options.goal
    if goal is None or work.data is None:
        return
    from transforms.pipelines.part import part
    from transforms.precision.finer_scheme import fallback_rule

    if too_large(work.graph):
        raise ValueError(
            f"target of {goal.bound}: the model is too large to compare layers: weights above 2 GiB, or more "
            f"than {MOST_NODES:,} nodes"
        )
    fallback_rule(work.options.fallback, work.scheme)  # raises before any work
    part(work, work.data)
