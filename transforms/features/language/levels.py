"""Step: choose the accuracy level of 4-bit products by its measured loss and time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from transforms.features.language.random_cost import MOST, SHARE, RandomCost
from transforms.files.spelling import spelled
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.rewire import remove_unused
from transforms.graph.some_names import counted
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work
from transforms.run.lifelike_feeds import LENGTH, lifelike_feeds
from transforms.run.turns import Timing, Turns, ratio, timed_options
from transforms.scheme.scheme import FOUND
from transforms.write_matmul_nbits import OPERATOR, ROUNDED

_SECONDS = 0.5  # of inferences
_SLOWER = 1.1
"""Ratio of times, exceeded in three of four runs, above which a level is not taken."""


def choose_level(work: Work, costs_of: RandomCost) -> None:
    """Round inputs of products to int8 where that costs less than .02 nats; report it.

    Tries products in 4 bits; with weights kept on their grids, all products or those in 8 bits, if that
    costs a tenth of the limit. Outputs are compared on random tokens; a level that is slower on this machine
    is not taken. Does nothing if an option or a goal excludes it, if outputs may not be compared, or if they
    do not depend on random tokens.
    """
    options = work.options
    if not options.matmul_nbits or options.accuracy_level is not None or options.goal is not None:
        return
    is_kept = work.scheme.weight == FOUND
    most = MOST / 10 if is_kept else MOST
    for bits in ((4, 8), (8,)) if is_kept else ((4,),):
        graph = copy_graph(work.graph)
        count = _round_inputs(graph, bits)
        cost = costs_of.of(graph) if count and work.options.may_compare else None
        if cost is not None and _is_taken(work, graph, (count, bits), cost, most, is_text=costs_of.is_text):
            work.graph = graph
            return


def _is_taken(
    work: Work,
    graph: gs.Graph,
    products: tuple[int, tuple[int, ...]],
    cost: float,
    most: float,
    *,
    is_text: bool,
) -> bool:
    """Return whether a graph with another level is better; add a line to the record."""
    subject = f"{counted(products[0], 'product')} in {' and '.join(map(str, products[1]))} bits"
    which, decibels = f"{subject} with accuracy_level", 10 * np.log10(max(cost, 1e-12) * SHARE / MOST)
    how = f"{cost:.2g} nats on random tokens" if is_text else f"an error of {decibels:.0f} dB"
    time = _time(work, graph, 1 if is_text else LENGTH) if work.options.times else None
    if cost >= most:
        takes = "" if time is None else f" and take {time.median:.2f} times as long"
        way = spelled("{accuracy_level:4} takes it")
        work.record.stored.append(f"{which} 1: 4 would cost {how}{takes}; {way}")
        return False
    if time is not None and time.low > _SLOWER:
        work.record.stored.append(f"{which} 1: with 4 the model would take {time.median:.2f} times as long")
        return False
    option = spelled("{accuracy_level:1} keeps inputs in float32")
    taken = "" if time is None else f", {time.median:.2f} times as long as with 1"
    work.record.stored.append(f"{which} 4: {how}{taken}; {option}")
    return True


def _round_inputs(graph: gs.Graph, bits: tuple[int, ...]) -> int:
    """Set the accuracy level of products in some bits to rounded inputs; return how many were changed."""
    count = 0
    for owner in walk.graphs(graph):
        nodes = [node for node in owner.nodes if node.op == OPERATOR and node.attrs.get("bits") in bits]
        for node in [node for node in nodes if node.attrs.get("accuracy_level") != ROUNDED]:
            node.attrs["accuracy_level"] = ROUNDED
            count += 1
            cast = walk.producer(node.inputs[2])
            is_table = not isinstance(node.inputs[1], gs.Constant)  # lookups read it with these scales
            if cast is not None and isinstance(cast.inputs[0], gs.Constant) and not is_table:
                scales = cast.outputs[0]  # kernels want constants
                constant = gs.Constant(str(scales.name), load(cast.inputs[0]).astype("float32"))
                walk.redirect(scales, constant)
        unread = [node for node in owner.nodes if node.op == "Cast" and not node.outputs[0].outputs]
        remove_unused(owner, unread)
    return count


def _time(work: Work, graph: gs.Graph, length: int) -> Timing | None:
    """Return the ratio of a graph's time to the present one at a sequence length; None if it fails."""
    graphs = [copy_graph(original) for original in (graph, work.graph)]
    feeds = list(lifelike_feeds(work.graph, 1, length))
    options = timed_options(replace(work.run_here, prepack=True))
    try:
        after, before = Turns()(graphs, feeds, options, _SECONDS)
    except Exception:  # the runtime's exceptions share no narrower class
        return None
    return ratio(after, before)
