"""Step: hold a model for the processor's kernels against the same scheme without that target."""

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
    """Build the model without the target; take it if it is better, and no slower or the only one of use.

    A model of no use is then searched for layers that have to be float, as for a goal.
    """
    judge = work.judge
    if judge is None or not judge.can_judge:
        return
    feeds = judge.reference.feeds[:SEARCHED_ON]
    judge = Judge(work.float_form(), feeds, work.run_here, known=judge.reference.known, stays=True)
    own = _decibels(judge, work.graph)
    if own + NEAR >= FINE:
        return
    work.events.phase("comparing with the preset")
    try:
        found = _beside(work, judge, own)
        written = found.without if found.is_taken else found.own
        if written < USELESS and work.asked.keep_float:
            found = replace(found, found=_useful(work))
    except Exception as error:  # the runtime's exceptions share no narrower class
        work.events.note(f"Not compared with the preset: {error}")
        return
    work.record.beside = found


def _beside(work: Work, judge: Judge, own: float) -> BesidePreset:
    """Return how the model stands beside the preset, after a better one that is no slower was taken over.

    Candidates are what the preset decided with the kernels of the target, and the preset itself.
    """
    other = rebuilt(work, without_target(work.asked, target(ON_CPU)))
    without = _decibels(judge, other.graph)
    found, timer = BesidePreset(own, without, judge.count), Turns()
    if not found.is_far:
        return found
    layers = {**work.scheme.layers, **other.scheme.layers}
    fitted = rebuilt(work, other.scheme.with_(target=ON_CPU, layers=layers))
    made = _decibels(judge, fitted.graph)
    is_better = made > own + NEAR and _is_legal(fitted.graph)
    if is_better and (made > USELESS > own or _is_no_slower(_ratio(work, fitted.graph, timer))):
        fitted.record.decisions = other.record.decisions
        _take(work, fitted)
        found = replace(found, own=made)
    if not found.is_far:
        return found
    ratio = _ratio(work, other.graph, timer)
    is_taken = _is_legal(other.graph) and (found.own < USELESS or _is_no_slower(ratio))
    if is_taken:
        _take(work, other)
    return replace(found, ratio=ratio, is_taken=is_taken)


def _take(work: Work, other: Work) -> None:
    """Take over a model with what decided about it."""
    decisions = other.record.decisions
    take_over(work, other)
    work.record.decisions = decisions


def _is_legal(graph: gs.Graph) -> bool:
    """Return whether a model keeps to the rules of the target; something in it is quantized."""
    return not check_target(graph, target(ON_CPU))


def _is_no_slower(ratio: Timing | None) -> bool:
    return ratio is not None and speed(ratio) in (Speed.FASTER, Speed.SAME)


def _decibels(judge: Judge, graph: gs.Graph) -> float:
    return judge.errors_of(copy_graph(graph)).mean


def _ratio(work: Work, graph: gs.Graph, timer: Turns) -> Timing | None:
    """Return the time of a graph by that of the model, None where nothing is to be timed."""
    if not work.options.times:
        return None
    from transforms.precision.place import ratio_of  # imports take time that small jobs notice

    assert work.data is not None, "the judge has samples"
    feed = next(feed for _, feed in work.data.feeds(work.graph))
    return ratio_of((graph, work.graph), feed, work.options.run, SLOWER, timer)


def _useful(work: Work) -> Reached | None:
    """Take over the model with the fewest layers in float that is of use, if there is one."""
    from transforms.precision.reach import reach_target  # imports take time that small jobs notice

    feeds = work.judge.reference.feeds if work.judge else ()
    count, build = len(feeds), LastRebuilt(work)
    if count < 2 * FEWEST:
        return None
    names, goal = nameable(work), Target("sqnr", USELESS)
    try:
        found = reach_target(
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
    if found.layers:
        take_over(work, build.last)
    return found
