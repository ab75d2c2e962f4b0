"""Step: calibrate, and open the judge if outputs may decide."""

from __future__ import annotations

import operator
from dataclasses import replace
from itertools import islice

import onnx_graphsurgeon as gs

from transforms import features
from transforms.calibrate.calibrate_plan import calibrate_plan
from transforms.calibrate.calibration import Calibration
from transforms.calibrate.calibration_data import CalibrationData
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
    """Let features that the scheme asks for decide on random inputs, if outputs on samples do not decide."""
    if not may_decide(work):
        run_feature_rows(work, features.asked_for(work.asked, *work.asked.layers.values()), "unjudged")


def measure(work: Work) -> None:
    """Measure the statistics that the scheme needs, in one pass over the samples.

    If outputs may decide, the statistics suffice for all candidates, each half of the samples included, and
    the judge is opened. Else rules set all 'auto' keys. Raises MissingDataError if samples are needed and
    missing, ValueError for samples that do not fit the model.
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
    """Return the judge of a prepared graph; a job that decides twice keeps graph, record and judge."""
    if work.base.undecided is not None:
        return work.base.undecided.judge.anew()
    assert work.data is not None, "outputs decide on samples alone"
    first = [feed for _, feed in islice(work.data.feeds(work.graph), FIRST)]
    feeds = first[: judging(len(first), texts=bool(logits_of(work.graph))).stop]
    run = replace(work.options.run, simulate=True)  # scales of candidates are inputs of the session
    decides_twice = holds_against_preset(work)
    judge = Judge(graph, feeds, run, stays=True, remembers=decides_twice)
    work.base.undecided = Prepared(graph, noted, judge) if decides_twice else None
    return judge


def follow_rules(work: Work) -> None:
    """Set all 'auto' keys by rules in a job without samples; MissingDataError if the scheme needs some."""
    measure_by_rule(work)


def measure_by_rule(work: Work, progress: Progress | None = None) -> None:
    """Set all 'auto' keys by rules, change the graph accordingly, and measure the ranges it needs."""
    prepared, work.scheme = work.scheme, work.asked.by_rule()
    change_form(work, prepared)
    data = _that_give_ranges(work, work.data)
    work.statistics = calibrate_plan(work.plan(), data, progress=progress, folded=work.options.may_compare)
    keep_joined(work)


def keep_joined(work: Work) -> None:
    """Keep a Concat in float if the ranges of its inputs are far apart, whatever else is decided."""
    if work.statistics is None or not any(node.op == "Concat" for node in work.graph.nodes):
        return
    names = joined_far_apart(work.plan(), work.statistics.extremes())
    if names:
        work.record.notes.append(kept_in_float(names, JOINED))
        in_float = dict.fromkeys(names, FLOAT32)
        work.asked, work.scheme = (
            scheme.with_(tensors={**scheme.tensors, **in_float}) for scheme in (work.asked, work.scheme)
        )


def change_form(work: Work, prepared: Scheme) -> None:
    """Apply the changes of channels that the scheme asks for and ``prepared``, the scheme so far, did not."""
    moved = {name: move for name, move in work.scheme.outliers.items() if name not in prepared.outliers}
    more = work.scheme.with_(
        equalize_layers=bool(work.scheme.equalize_layers and prepared.equalize_layers is not True),
        rotate_channels=work.scheme.rotate_channels and not prepared.rotate_channels,
        outliers=moved,
    )
    if more.equalize_layers or moved or more.rotate_channels:
        work.base.graph = None  # without these changes
        change_channels(work, work.graph, more, work.record)


def change_channels(work: Work, graph: gs.Graph, scheme: Scheme, record: Record) -> None:
    """Equalize, rotate and move channels of a prepared graph as a scheme says; record the changes."""
    rewriting = Rewriting(graph, scheme, targets=work.named)
    run_rows(rewriting, (EQUALIZE, ROTATE, MOVE_OUTLIERS))
    record.changes.update(rewriting.record.changes)


def rules_beside_form(asked: Scheme) -> Scheme:
    """Return the scheme with 'auto' keys set by rule, and layers equalized only if the scheme says so."""
    return asked.by_rule().with_(equalize_layers=asked.equalize_layers is True)


def measure_for_candidates(
    work: Work,
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None,
    progress: Progress | None = None,
) -> Calibration | None:
    """Return statistics of a graph that suffice for all candidates, those of halves and folds included."""
    means = work.asked.correct_biases is not False
    if work.asked.per_channel == AUTO:  # a weight with one scale is fitted to the inputs of its layer
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
    """Measure the statistics that the plan of the scheme lacks; return whether it then has all."""
    plan, statistics = work.plan(), work.statistics
    missing = [
        tensor for tensor in plan.measured() if statistics is None or tensor.name not in statistics.observed
    ]
    if not missing or statistics is None or work.data is None:
        return not missing
    data = replace(_that_give_ranges(work, work.data) or work.data, cache=None)
    more = calibrate_plan(
        plan,
        data,
        halved=bool(statistics.halves),
        folded=bool(statistics.folds),
        most=MOST_COUNTED,
        known=statistics.observed,
    )
    if more is not None:
        work.statistics = statistics.with_more(more)
    return True


def _that_give_ranges(work: Work, data: CalibrationData | None) -> CalibrationData | None:
    """Return the samples that give ranges: without those that check the outputs, if weights are fitted.

    A model with fitted weights is not built again for each fold.
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
    """Return whether outputs may decide something: there are samples, and the model is not too large."""
    return _wants_judge(work) and not _is_beyond_reach(work)


def _wants_judge(work: Work) -> bool:
    asked, data = work.asked, work.data
    has_moves = asked.is_open or asked.move_outliers or asked.keep_float
    return data is not None and data.decides and has_moves


def _is_beyond_reach(work: Work) -> bool:
    assert work.data is not None, "outputs decide on samples alone"
    return too_large(work.graph) or work.data.memory_limit is not None


def weights_of(graph: gs.Graph) -> WeightMemory:
    """Return a cache of quantized weights of a graph, which copies of the graph share."""
    layers = (node for node in graph.nodes if is_dot_product(node))
    weights = (tensor for node in layers for tensor in node.inputs if isinstance(tensor, gs.Constant))
    return WeightMemory(
        tensor._values if is_weightless(tensor._values) else tensor.values for tensor in weights
    )
