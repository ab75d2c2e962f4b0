"""What ``tools.quantize`` does for a target of the outputs: the fewest layers that have to be finer."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import onnx_graphsurgeon as gs

from tools.cli.progress import Phases
from tools.jobs.load import load_model
from tools.jobs.quantize_options import QuantizeJob
from tools.jobs.quantized import Made
from tools.summaries import reached as summary
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune.float_reference import float_reference
from transforms.judge.budget import MOST_NODES, too_large
from transforms.origins.finer_layers import Built, fallback_rule, reach_target
from transforms.origins.held_out import HeldOut, hold_out
from transforms.pipelines.quantize_graph import Quantized, quantize_graph
from transforms.scheme import Scheme
from transforms.search.target import LOST_TOP1, Target

_MOST_SEARCHED = 8  # samples that layers are chosen on


def target_of(job: QuantizeJob) -> Target | None:
    """Return the target of a job, None without one."""
    if job.min_sqnr is not None:
        return Target("sqnr", job.min_sqnr)
    return None if job.top1 is None else Target(LOST_TOP1, job.top1)


def held_out(
    job: QuantizeJob, scheme: Scheme, data: CalibrationData | None, graph: gs.Graph
) -> HeldOut | None:
    """Return the samples of a job with a target in two parts, None without one.

    Raises ValueError for a scheme or a model that layers cannot be chosen for.
    """
    if target_of(job) is None or data is None:
        return None
    name = "--min-sqnr" if job.min_sqnr is not None else "--top1"
    for table in ("finetune", "auto_mixed_precision"):
        if getattr(scheme, table):
            raise ValueError(f"{name} does not go with the table [{table}] of the scheme")
    if too_large(graph):
        raise ValueError(
            f"{name}: the model is too large to compare layers: weights above 256 MiB, or more than "
            f"{MOST_NODES:,} nodes"
        )
    fallback_rule(job.fallback, scheme)  # raises before any work
    return hold_out(data, graph)


def reached(made: Made, asked: Scheme, apart: HeldOut, job: QuantizeJob, phases: Phases) -> Made:
    """Return the model with as few finer layers as its target takes, and print which these are."""
    target = target_of(job)
    assert target is not None, "asked for before"
    results: list[Quantized] = []

    def _build(scheme: Scheme) -> Built:
        graph = load_model(job.input, scheme)
        wish = scheme.with_(full_range=asked.full_range)  # layers that are finer leave others to shift
        keep = job.export_ranges is not None
        results.append(quantize_graph(graph, wish, apart.data, keep_grids=keep))
        return graph, results[-1].scheme or wish

    feeds = [feed for _, feed in islice(apart.data.feeds(made.graph), _MOST_SEARCHED)]
    with phases("searching", "model") as bar:
        found = reach_target(
            (made.graph, made.scheme),
            made.float_graph(),
            lambda: load_model(job.input, made.scheme),
            _build,
            feeds,
            apart.feeds,
            target,
            fallback_rule(job.fallback, made.scheme),
            job.run,
            lambda done, note: bar.show(done, None, note),
        )
    for line in summary.reached_lines(found, target, job.fallback, apart):
        print(line)
    if not found.layers:
        return made
    used = found.scheme
    return replace(
        made,
        graph=found.graph,
        done=replace(results[-1], record=made.done.record),
        scheme=used,
        float_graph=lambda: float_reference(lambda: load_model(job.input, used), found.graph, used),
    )
