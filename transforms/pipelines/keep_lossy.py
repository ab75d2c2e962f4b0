"""Step: keep in float the few layers that carry most of the loss, where that is worth its price."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from transforms.graph.some_names import counted
from transforms.judge.budget import Budget
from transforms.judge.constants import FEWEST
from transforms.judge.decisions import LAYERS_IN_FLOAT, Tried
from transforms.judge.judge import Judge
from transforms.judge.sample_roles import judging_layers, ranking_layers, taken
from transforms.judge.softmax_outputs import in_both, show_before_softmax
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.rebuild import LastRebuilt, nameable, take_over
from transforms.pipelines.work import Work
from transforms.run.run_each import with_bounded_memory, with_resting_threads
from transforms.scheme import Scheme

if TYPE_CHECKING:
    from transforms.precision.chosen import LossyLayers


def keep_lossy(work: Work) -> None:
    """Rank layers on one half of the judge's samples, judge those in float on the other, and build so.

    Only for activations of 8 bits that are integers, without a goal that layers are chosen for, tuning, or
    ranges that are given; and for a target that computes in float as well, or none.
    """
    if work.judge is None or not work.judge.can_judge:
        return
    if work.judge.reference.logits:
        return  # of a language model, what layers read was left in float, at no bytes
    feeds = work.judge.reference.feeds
    if len(feeds) < 2 * FEWEST or work.statistics is None:
        return
    work.events.phase("ranking layers")
    try:
        found, other = _found(work, work.judge)
    except Exception as error:  # the runtime's exceptions share no narrower class
        work.events.note(f"Layers not ranked: {error}")
        return
    if found.gain is not None:
        words = counted(len(found.layers), "layer") + " in float"
        work.record.decisions.tried.append(
            Tried(LAYERS_IN_FLOAT, words, found.gain, found.kept, found.samples)
        )
    if found.kept:
        work.record.lossy = found
        take_over(work, other)


def _found(work: Work, judge: Judge) -> tuple[LossyLayers, Work]:
    """Return the layers, and the work in which the model was built with them.

    An output that ends in a Softmax counts as what is before it.
    """
    from transforms.precision.lossy import lossy_layers  # imports take time that small jobs notice

    assert work.statistics is not None, "integers have ranges"
    feeds, floats = judge.reference.feeds, work.float_form()
    count, build = len(feeds), LastRebuilt(work)
    saturated = in_both(floats, work.graph)

    def _judged(graph: gs.Graph) -> gs.Graph:
        copy = copy_graph(graph)
        show_before_softmax(copy, saturated, alone=True)
        return copy

    def _built(scheme: Scheme) -> tuple[gs.Graph, Scheme]:
        graph, used = build(scheme)
        return _judged(graph), used

    runs = Budget.of(floats, work.statistics, work.options.effort).runs
    ranked, judged = taken(feeds, ranking_layers(count)), taken(feeds, judging_layers(count))
    floats, first = _judged(floats), (_judged(work.graph), work.scheme)
    apart = Judge(floats, judged, work.run_here, known=judge.reference.known, stays=True)
    resting = with_bounded_memory(with_resting_threads(work.options.run), feeds)
    names = partial(nameable, work)
    found = lossy_layers(first, floats, names, _built, ranked, apart, runs, resting)
    return found, build.last
