"""Step: measure statistics of the samples, and open the judge where outputs may decide."""

from __future__ import annotations

import operator
from dataclasses import replace
from itertools import islice

import onnx_graphsurgeon as gs

from transforms import features
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.calibrate.calibration import Calibration
from transforms.conversion.prepare import EQUALIZE, MOVE_OUTLIERS, ROTATE
from transforms.conversion.record import Record
from transforms.conversion.rewriting import Rewriting
from transforms.conversion.rows import run_feature_rows, run_rows
from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.embeddings import logits_of
from transforms.graph.lazy_values import is_weightless
from transforms.graph.selection import label_of
from transforms.judge.budget import too_large
from transforms.judge.constants import MOST_COUNTED
from transforms.judge.judge import Judge
from transforms.judge.sample_roles import FIRST, checking, judging
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.asked import holds_against_preset
from transforms.pipelines.base import Prepared
from transforms.pipelines.work import Work
from transforms.plan.joined_ranges import JOINED, joined_far_apart
from transforms.plan.sampled_exceptions import kept_in_float
from transforms.plan.weight_cache import WeightMemory
from transforms.run.events import Progress
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO, FLOAT32
from transforms.scheme.scheme_values import SPREAD


def probe(work: Work) -> None:
    """Let features of keys decide by random numbers what outputs do not decide."""
    if not may_decide(work):
        run_feature_rows(work, features.asked_for(work.asked, *work.asked.layers.values()), "unjudged")


def measure(work: Work) -> None:
    """Measure what the scheme needs to know of the samples, in one pass over them.

    Where outputs may decide, statistics are enough for all candidates, of both halves of the samples too, and
    the judge is opened. Elsewhere rules close the scheme. Raises MissingDataError without samples that are
    needed, and ValueError for samples that do not fit the model.
    """
    progress = work.events.phase("calibrating", "sample")
    if not may_decide(work):
        if _wants_judge(work):
            why = "Decided by rule: the model is too large to compare outputs, or memory is limited"
            work.record.decisions.notes.append(why)
        measure_by_rule(work, progress)
        return
    noted = work.record.noted()
    work.base.memory = work.base.memory or weights_of(work.graph)
    work.scheme = rules_beside_form(work.asked)
    work.statistics = measure_for_candidates(work, work.graph, work.scheme, work.data, progress)
    work.base.graph = copy_graph(work.graph)
    work.base.names = work.named.names | {label_of(node) for node in walk.nodes(work.graph)}
    keep_joined(work)
    work.judge = _judge(work, work.base.graph, noted)


def _judge(work: Work, graph: gs.Graph, noted: Record) -> Judge:
    """Return the judge by a prepared graph; of a job that decides twice, graph, record and judge are kept."""
    if work.base.undecided is not None:
        return work.base.undecided.judge.anew()
    assert work.data is not None, "outputs decide on samples alone"
    first = [feed for _, feed in islice(work.data.feeds(work.graph), FIRST)]
    feeds = first[: judging(len(first), texts=bool(logits_of(work.graph))).stop]
    run = replace(work.options.run, simulate=True)  # scales of candidates are fed
    decides_twice = holds_against_preset(work)
    judge = Judge(graph, feeds, run, stays=True, remembers=decides_twice)
    work.base.undecided = Prepared(graph, noted, judge) if decides_twice else None
    return judge


def follow_rules(work: Work) -> None:
    """Close the scheme by rules where there are no samples; MissingDataError if it needs some."""
    measure_by_rule(work)


def measure_by_rule(work: Work, progress: Progress | None = None) -> None:
    """Close the scheme by rules, bring the graph into their form, and measure what they need."""
    prepared, work.scheme = work.scheme, work.asked.by_rule()
    change_form(work, prepared)
    data = _that_give_ranges(work, work.data)
    work.statistics = calibrate_plan(work.plan(), data, progress=progress, folded=work.options.may_compare)
    keep_joined(work)


def keep_joined(work: Work) -> None:
    """Keep Concats in float that join ranges far apart, whatever else is decided."""
    if work.statistics is None:
        return
    names = joined_far_apart(work.plan(), work.statistics.extremes())
    if names:
        work.record.notes.append(kept_in_float(names, JOINED))
        kept = dict.fromkeys(names, FLOAT32)
        work.asked, work.scheme = (
            one.with_(tensors={**one.tensors, **kept}) for one in (work.asked, work.scheme)
        )


def change_form(work: Work, prepared: Scheme) -> None:
    """Give the graph the form that the scheme says, beyond the one that it was prepared for."""
    moved = {name: move for name, move in work.scheme.outliers.items() if name not in prepared.outliers}
    more = work.scheme.with_(
        equalize_layers=bool(work.scheme.equalize_layers and prepared.equalize_layers is not True),
        rotate_channels=work.scheme.rotate_channels and not prepared.rotate_channels,
        outliers=moved,
    )
    if more.equalize_layers or moved or more.rotate_channels:
        work.base.graph = None  # has the form of before
        change_channels(work, work.graph, more, work.record)


def change_channels(work: Work, graph: gs.Graph, scheme: Scheme, record: Record) -> None:
    """Equalize, rotate and move channels of a prepared graph as a scheme says."""
    rewriting = Rewriting(graph, scheme, targets=work.named)
    run_rows(rewriting, (EQUALIZE, ROTATE, MOVE_OUTLIERS))
    record.changes.update(rewriting.record.changes)


def rules_beside_form(asked: Scheme) -> Scheme:
    """Return a scheme with whatever is open by rule, but for the form of the graph, which is as asked."""
    return asked.by_rule().with_(equalize_layers=asked.equalize_layers is True)


def measure_for_candidates(
    work: Work,
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None,
    progress: Progress | None = None,
) -> Calibration | None:
    """Return statistics of a form of the graph, of both folds too, that are enough for all candidates."""
    means = work.asked.correct_biases is not False
    if work.asked.per_channel == AUTO:  # weights with one scale need to know what they are multiplied with
        scheme = scheme.with_(per_channel=SPREAD)
    plan, data = work.plan(graph, scheme), _that_give_ranges(work, data)
    return calibrate_plan(
        plan,
        data,
        progress=progress,
        halved=True,
        folded=work.options.may_compare,
        most=MOST_COUNTED,
        means=means,
    )


def measure_missing(work: Work) -> bool:
    """Measure what a plan of the scheme needs beside what is known; return whether all is known then."""
    plan, known = work.plan(), work.statistics
    missing = [tensor for tensor in plan.measured() if known is None or tensor.name not in known.observed]
    if not missing or known is None or work.data is None:
        return not missing
    data = replace(_that_give_ranges(work, work.data) or work.data, cache=None)
    more = calibrate_plan(
        plan,
        data,
        halved=bool(known.halves),
        folded=bool(known.folds),
        most=MOST_COUNTED,
        known=known.observed,
    )
    if more is not None:
        work.statistics = known.with_more(more)
    return True


def _that_give_ranges(work: Work, data: CalibrationData | None) -> CalibrationData | None:
    """Return the samples that ranges are measured on: of weights that are fitted, not those that check them.

    A model with such weights is not made again for each fold.
    """
    if data is None or not work.fits_weights:
        return data
    feeds = data.feeds(work.graph)
    count = operator.length_hint(feeds, 0) or sum(1 for _ in feeds)
    spared = checking(count, texts=bool(logits_of(work.graph)))
    if not spared:
        return data
    from transforms.precision.held_out import without

    return without(data, work.graph, spared, count)


def may_decide(work: Work) -> bool:
    """Return whether outputs may decide something, and are within reach."""
    return _wants_judge(work) and not _is_beyond_reach(work)


def _wants_judge(work: Work) -> bool:
    asked, data = work.asked, work.data
    has_moves = asked.is_open or asked.move_outliers or asked.keep_float
    return data is not None and data.decides and has_moves


def _is_beyond_reach(work: Work) -> bool:
    assert work.data is not None, "outputs decide on samples alone"
    return too_large(work.graph) or work.data.memory_limit is not None


def weights_of(graph: gs.Graph) -> WeightMemory:
    """Return a memory of the weights of a graph, which its copies share."""
    layers = (node for node in graph.nodes if is_dot_product(node))
    weights = (tensor for node in layers for tensor in node.inputs if isinstance(tensor, gs.Constant))
    return WeightMemory(
        tensor._values if is_weightless(tensor._values) else tensor.values for tensor in weights
    )
