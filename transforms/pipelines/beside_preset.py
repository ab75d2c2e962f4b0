"""Step: compare a model for the CPU target with one of the same scheme without that target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from transforms.deploy.check_target import check_target
from transforms.judge.constants import FEWEST, FINE, SEARCHED_ON, USELESS
from transforms.judge.judge import Judge
from transforms.judge.sample_roles import judging_layers, ranking_layers, taken
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.rebuild import LastRebuilt, nameable, rebuilt, take_over
from transforms.pipelines.work import Work
from transforms.precision.chosen import NEAR, BesidePreset
from transforms.run.speed import SLOWER, Speed, speed
from transforms.run.turns import Timing, Turns
from transforms.scheme.apply_target import without_target
from transforms.scheme.layer_rule import IN_FLOAT
from transforms.scheme.targets import ON_CPU, target
from transforms.search.target import Target, TargetError

if TYPE_CHECKING:
    from transforms.precision.chosen import Reached


def beside_preset(work: Work) -> None:
    """Build the model without the target; use it if it is more accurate and not slower, or alone usable.

    If the result is still useless, search for the layers that have to be float, as for an accuracy target.
    """
    judge = work.judge
    if judge is None or not judge.can_judge:
        return
    feeds = judge.reference.feeds[:SEARCHED_ON]
    judge = Judge(work.float_form(), feeds, work.run_here, known=judge.reference.known, stays=True)
    sqnr = _decibels(judge, work.graph)
    if sqnr + NEAR >= FINE:
        return
    work.events.phase("comparing with the preset")
    try:
        comparison = _beside(work, judge, sqnr)
        written = comparison.without if comparison.is_taken else comparison.own
        if written < USELESS and work.asked.keep_float:
            comparison = replace(comparison, found=_useful(work))
    except Exception as error:  # the runtime's exceptions share no narrower class
        work.events.note(f"Not compared with the preset: {error}")
        return
    work.record.beside = comparison


def _beside(work: Work, judge: Judge, sqnr: float) -> BesidePreset:
    """Return how the model compares with the preset, after replacing it by a better one that is not slower.

    Candidates are the decisions of the preset with the kernels of the target, and the preset itself.
    """
    other = rebuilt(work, without_target(work.asked, target(ON_CPU)))
    preset_sqnr = _decibels(judge, other.graph)
    comparison, timer = BesidePreset(sqnr, preset_sqnr, judge.count), Turns()
    if not comparison.is_far:
        return comparison
    layers = {**work.scheme.layers, **other.scheme.layers}
    fitted = rebuilt(work, other.scheme.with_(target=ON_CPU, layers=layers))
    fitted_sqnr = _decibels(judge, fitted.graph)
    is_better = fitted_sqnr > sqnr + NEAR and _is_legal(fitted.graph)
    if is_better and (fitted_sqnr > USELESS > sqnr or _is_no_slower(_ratio(work, fitted.graph, timer))):
        fitted.record.decisions = other.record.decisions
        _take(work, fitted)
        comparison = replace(comparison, own=fitted_sqnr)
    if not comparison.is_far:
        return comparison
    ratio = _ratio(work, other.graph, timer)
    is_taken = _is_legal(other.graph) and (comparison.own < USELESS or _is_no_slower(ratio))
    if is_taken:
        _take(work, other)
    return replace(comparison, ratio=ratio, is_taken=is_taken)


def _take(work: Work, other: Work) -> None:
    """Take over a model together with its decisions."""
    decisions = other.record.decisions
    take_over(work, other)
    work.record.decisions = decisions


def _is_legal(graph: gs.Graph) -> bool:
    """Return whether a model meets the rules of the target."""
    return not check_target(graph, target(ON_CPU))


def _is_no_slower(ratio: Timing | None) -> bool:
    return ratio is not None and speed(ratio) in (Speed.FASTER, Speed.SAME)


def _decibels(judge: Judge, graph: gs.Graph) -> float:
    return judge.errors_of(copy_graph(graph)).mean


def _ratio(work: Work, graph: gs.Graph, timer: Turns) -> Timing | None:
    """Return the time of a graph divided by that of the model, or None if models are not timed."""
    if not work.options.times:
        return None
    from transforms.precision.place import ratio_of  # imports take time that small jobs notice

    assert work.data is not None, "the judge has samples"
    feed = next(feed for _, feed in work.data.feeds(work.graph))
    return ratio_of((graph, work.graph), feed, work.options.run, SLOWER, timer)


def _useful(work: Work) -> Reached | None:
    """Take over the usable model with the fewest layers in float, if there is one."""
    from transforms.precision.reach import reach_target  # imports take time that small jobs notice

    feeds = work.judge.reference.feeds if work.judge else ()
    count, build = len(feeds), LastRebuilt(work)
    if count < 2 * FEWEST:
        return None
    names, goal = nameable(work), Target("sqnr", USELESS)
    try:
        reached = reach_target(
            (work.graph, work.scheme),
            work.float_form(),
            lambda: names,
            build,
            taken(feeds, ranking_layers(count)),
            taken(feeds, judging_layers(count)),
            goal,
            IN_FLOAT,
            work.options.run,
        )
    except TargetError as error:
        work.record.decisions.notes.append(f"No layers in float make it useful: {error}")
        return None
    if reached.layers:
        take_over(work, build.last)
    return reached
