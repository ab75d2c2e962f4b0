"""What ``tools.quantize`` does for a target of the outputs: the fewest layers that have to be finer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import onnx_graphsurgeon as gs

from tools.cli.progress import Phases
from tools.cli.said import say
from tools.jobs.load import load_for
from tools.jobs.quantize_options import QuantizeJob
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.record import Record
from transforms.graph.some_names import counted, some_names
from transforms.judge.budget import MOST_NODES, too_large
from transforms.precision.bench import score_of
from transforms.precision.finer_scheme import fallback_rule
from transforms.precision.held_out import HeldOut, hold_out
from transforms.precision.reach import Built, Reached, reach_target
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
            f"{name}: the model is too large to compare layers: weights above 1 GiB, or more than "
            f"{MOST_NODES:,} nodes"
        )
    fallback_rule(job.fallback, scheme)  # raises before any work
    return hold_out(data, graph)


def reached(
    first: tuple[gs.Graph, Record, Scheme],
    float_graph: Callable[[], gs.Graph],
    quantize: Callable[[gs.Graph, Scheme], Record],
    apart: HeldOut,
    job: QuantizeJob,
    phases: Phases,
) -> tuple[gs.Graph, Record, Scheme]:
    """Return the model with as few finer layers as its target takes, and print which these are.

    ``first``: the model without any, how it was quantized, and its scheme. ``quantize`` does that in place
    by a scheme in which nothing is open.
    """
    target = target_of(job)
    assert target is not None, "asked for before"
    graph, done, used = first
    results: list[Record] = []

    def _build(scheme: Scheme) -> Built:
        graph = load_for(job, scheme)
        results.append(quantize(graph, scheme))
        return graph, results[-1].scheme or scheme

    feeds = [feed for _, feed in islice(apart.data.feeds(graph), _MOST_SEARCHED)]
    with phases("searching", "model") as bar:
        found = reach_target(
            (graph, used),
            float_graph(),
            lambda: load_for(job, used),
            _build,
            feeds,
            apart.feeds,
            target,
            fallback_rule(job.fallback, used),
            job.run,
            lambda done, note: bar.show(done, None, note),
        )
    for line in _lines(found, target, job.fallback, apart):
        say(line)
    if not found.layers:
        return first
    return found.graph, replace(results[-1], decisions=done.decisions), found.scheme


def _kind(target: Target) -> str:
    return "states, no answers" if target.metric == LOST_TOP1 else "caches that the logits are made of"


def check_target(float_graph: gs.Graph, graph: gs.Graph, apart: HeldOut | None, job: QuantizeJob) -> None:
    """Raise TargetError for a model that misses its target as it is written; print what it has."""
    target = target_of(job)
    if target is None or apart is None:
        return
    value, where = score_of(graph, float_graph, apart.feeds, target, job.run), apart.where
    target.check(value, f"the model as it is written, on {where},")
    say(f"Target of {target.bound}: {target.text(value)} on {where} as it is written")


def _lines(found: Reached, target: Target, fallback: str, apart: HeldOut) -> Iterator[str]:
    """Yield what the target took: the metric before and after, the layers by name, and their price."""
    if found.left_out:
        yield f"Left out of the target: {some_names(found.left_out)}, fed back as {_kind(target)}"
    where = apart.where
    if not found.layers:
        yield f"Target of {target.bound}: {target.text(found.before)} on {where}, no layer needs {fallback}"
        return
    change = f"{target.text(found.before)} -> {target.text(found.after)}"
    yield f"Target of {target.bound}: {change} on {where}"
    yield f"In {fallback}: {len(found.layers)} of {counted(found.count, 'layer')}"
    for part in found.layers:
        others = f" with {', '.join(part.nodes[1:])}" if part.nodes[1:] else ""
        yield f"  {part.name} ({part.op}){others}"
    more = found.bytes_after - found.bytes_before
    share = 100 * more / max(found.bytes_before, 1)
    yield f"Price: {more:+,} bytes of weights ({share:+.0f} %)"
