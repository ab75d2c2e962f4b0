"""Step: decide the 'auto' keys of the scheme by the outputs on samples, with one move after the other."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from transforms import features
from transforms.calibrate.calibration import Calibration
from transforms.conversion.record import Record
from transforms.conversion.rows import features_of, run_feature_rows
from transforms.files.spelling import spelled
from transforms.graph.some_names import some_names
from transforms.judge.budget import Budget
from transforms.judge.constants import FEW_SAMPLES, FINE, PRICE, USELESS
from transforms.judge.judge import Judge
from transforms.moves.float_tensors import (
    FLOAT16,
    large_tensors,
    rounded,
    search_float_tensors,
    try_given_tensors,
)
from transforms.moves.improve import Best, Form, Move
from transforms.moves.lossy_layers import seconds_of_search, try_lossy_layers
from transforms.moves.lost_rows import loses_tokens, search_lost_rows
from transforms.moves.outliers import try_channels, try_equalized, try_outliers, try_rotated
from transforms.moves.settings import try_headroom, try_ranges, try_scales
from transforms.pipelines.asked import keeps_lossy
from transforms.pipelines.measure import (
    change_channels,
    change_form,
    measure_by_rule,
    measure_for_candidates,
    measure_missing,
)
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO, FLOAT32

log = logging.getLogger(__name__)

_PHASE = "quantizing"

_LONG = 3.0
"""Seconds from which on the progress bar says about how long the search takes."""


def try_float_tensors(best: Best) -> None:
    """Leave tensors in float that hold most of the error, or lose most of a token.

    Not for a target device: for the processor's kernels, layers in float are tried at the end, which cost
    less time (:mod:`transforms.pipelines.beside_preset`).
    """
    if not best.asked.keep_float or best.asked.target:
        return
    (search_lost_rows if loses_tokens(best) else search_float_tensors)(best)


MOVES: tuple[Move, ...] = (
    try_equalized,
    try_rotated,
    try_ranges,
    try_float_tensors,
    try_scales,
    try_outliers,
    try_channels,
    try_ranges,
    try_headroom,
    try_lossy_layers,
)
"""The moves of ``decide`` in order: those that gain most come first, while there are runs left.

Changes of channels precede ranges, which are tried again if channels have changed. Layers in float cost bytes
and come last.
"""


def decide(work: Work) -> None:
    """Decide all 'auto' keys of the scheme by the outputs on samples, and change the graph accordingly.

    Rules decide if the step ``measure`` opened no judge, or the judge cannot judge.
    """
    if work.judge is None:
        return
    work.events.phase(_PHASE)
    prepared, statistics = work.scheme, work.statistics
    if statistics is None and work.asked.is_dynamic:
        if work.judge.can_judge and work.judge.count >= FEW_SAMPLES:
            _move_outliers(work, work.judge)
        else:
            run_feature_rows(work, features.asked_for(work.asked, *work.asked.layers.values()), "unjudged")
            prepared = work.scheme  # the graph has its form already
    # a scheme without ranges has fewer moves; one sample cannot judge
    elif statistics is None:
        work.scheme = _without_ranges(work, work.judge)
    elif not work.judge.can_judge:
        why = "1 sample is too few, or no output is of a floating type"
        work.record.decisions.notes.append(f"Decided by rule: {why}")
        work.judge = None
        if work.asked.by_rule() != work.scheme:
            measure_by_rule(work)
            return
    else:
        _improve(work, work.judge, statistics)
    change_form(work, prepared)
    work.scheme = work.scheme.with_(move_outliers=False)
    if work.record.decisions.lossy is not None:
        measure_missing(work)


def _moves(work: Work) -> Sequence[Move]:
    if work.options.moves is not None:
        return work.options.moves
    return (*MOVES, *(move for feature in features_of(work.graph) for move in feature.moves))


def _move_outliers(work: Work, judge: Judge) -> None:
    """Move outliers of dynamically quantized tensors if outputs gain from it."""
    form = Form(work.graph, work.scheme, None, judge, work.plan, work.base.memory)
    best = _best(work, form, Budget(sys.maxsize))
    try_outliers(best)
    work.scheme, work.judge = best.scheme, best.form.judge


def _improve(work: Work, judge: Judge, statistics: Calibration) -> None:
    """Try the moves one after another, starting from the rules, and take over the best scheme."""
    start = work.scheme if work.asked.per_channel != AUTO else work.scheme.with_(per_channel=True)
    budget = Budget.of(work.graph, statistics, work.options.effort)
    log.info("%d runs, a model costs %d", budget.runs, budget.opened)
    few = min(judge.count, FEW_SAMPLES)  # of texts, which have a row for each token
    judge.count = few if judge.reference.logits else budget.samples(judge.count)
    best = _best(work, Form(work.graph, start, statistics, judge, work.plan, work.base.memory), budget)
    moves = _moves(work)
    if try_lossy_layers in moves:
        _tell_seconds(work, seconds_of_search(best))
    for move in moves:
        move(best)
        work.base.targets = work.named.naming(best.form.graph, best.scheme)  # before it has another form
    _tell_left(work)
    work.scheme, work.statistics, work.judge = best.scheme, best.form.statistics, best.form.judge


def _tell_seconds(work: Work, seconds: float) -> None:
    """Tell how long the search takes, if that is worth a word: of short ones it is told too high."""
    if seconds >= _LONG:
        work.events.phase(_PHASE)(0, None, f"about {seconds:.0f} s in all")


def _tell_left(work: Work) -> None:
    """Note the moves that were skipped because runs were used up, and the option for more runs."""
    decisions = work.record.decisions
    if decisions.left:
        moves = ", ".join(dict.fromkeys(move for move, _ in decisions.left))
        more = "" if work.options.effort == "high" else f"; {spelled('{effort:high}')} has more"
        decisions.notes.append(f"No runs left for: {moves}{more}")


def _without_ranges(work: Work, judge: Judge) -> Scheme:
    """Return the scheme of formats without ranges, with unsuitable tensors in float.

    Numbers beyond the largest float16 are clipped to it, which does no harm in a mask: the judge decides.
    """
    ruled, asked = work.scheme, work.asked
    plan = work.plan()
    if not asked.keep_float or asked.target or not rounded(plan) or plan.measured():
        return ruled
    assert work.data is not None, "the judge has samples"
    data = replace(work.data, source=judge.reference.feeds, cache=None)
    near, beyond = large_tensors(work.graph, plan, data)
    scheme = ruled.with_(tensors={**ruled.tensors, **dict.fromkeys(near, FLOAT32)})
    if near:
        work.record.decisions.notes.append(f"Kept in float, near the largest float16: {some_names(near)}")
    if not judge.can_judge:
        return scheme
    form = Form(work.graph, scheme, None, judge, work.plan, work.base.memory)
    best = _best(work, form, Budget(sys.maxsize))
    if beyond:
        try_given_tensors(best, beyond, 2 * PRICE)
    search_float_tensors(best, 2 * PRICE, FINE if rounded(plan, FLOAT16) else USELESS)
    return best.scheme


def _best(work: Work, form: Form, budget: Budget) -> Best:
    """Return the start of a search, with the functions by which moves change channels and calibrate again."""

    def _rewrite(graph: gs.Graph, scheme: Scheme) -> None:
        change_channels(work, graph, scheme.with_(equalize_layers=False, rotate_channels=False), Record())

    def _measure(graph: gs.Graph, scheme: Scheme) -> Calibration | None:
        return measure_for_candidates(work, graph, scheme, work.data and replace(work.data, cache=None))

    decisions, exclude = work.record.decisions, work.named.excluded
    names = work.base.names if keeps_lossy(work) else frozenset[str]()
    return Best(
        form,
        budget,
        decisions,
        work.asked,
        nameable=names,
        exclude=exclude,
        rewrite=_rewrite,
        measure=_measure,
    )
