"""Step: make a tuned or mixed model meet a gate by removing the quantization of some layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from glob import escape

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import bytes_of_numbers
from transforms.graph.selection import label_of
from transforms.judge.constants import SEARCHED_ON
from transforms.judge.sample_roles import searching, taken
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.keep_figure import keep_figure
from transforms.pipelines.work import Work
from transforms.remove_qdq import remove_qdq
from transforms.search.gate import Gate


def gate(work: Work) -> None:
    """Remove the quantization of the fewest layers with which the model meets the gate on held-out samples.

    Does nothing if an earlier step has recorded the metric. Raises GateError if no choice of layers meets the
    gate, unless the options allow a miss.
    """
    goal, apart = work.options.goal, work.held_out
    if not isinstance(goal, Gate) or apart is None or work.record.metric is not None:
        return
    from transforms.precision.bench import goal_bench  # imports take time that small jobs notice
    from transforms.precision.chosen import Reached
    from transforms.precision.reach import choose_layers
    from transforms.precision.switched_layers import SwitchedLayers

    # layers in float are made here by removing nodes: tuned weights and mixed formats are not built again
    first, reference, run = work.graph, work.float_form(), work.run_here
    progress = work.events.phase("choosing layers", "model")
    names = {label_of(node) for node in walk.nodes(first)}

    def _built(nodes: Sequence[str]) -> gs.Graph:
        graph = copy_graph(first)
        if patterns := [escape(name) for name in nodes if name in names]:
            remove_qdq(graph, nodes=patterns)
        return graph

    def _switched() -> SwitchedLayers:
        return SwitchedLayers(bench.viewed(reference), bench.viewed(first), run)

    bench = goal_bench(reference, apart.feeds, goal, run, lambda done, note: progress(done, None, note))
    # layers are chosen on samples that are not held out
    feeds = taken((feed for _, feed in apart.data.feeds(reference)), searching(SEARCHED_ON))
    chosen = choose_layers(
        first,
        _switched,
        lambda: names,
        _built,
        feeds,
        bench,
        "float32",
        allow_miss=work.options.allow_miss,
        float_bytes=math.inf if work.options.allow_large else bytes_of_numbers(reference),
    )
    sizes = bytes_of_numbers(first), bytes_of_numbers(chosen.graph)
    work.record.reached = Reached(
        **vars(chosen), scheme=work.scheme, bytes_before=sizes[0], bytes_after=sizes[1]
    )
    work.graph = chosen.graph
    keep_figure(work, chosen.after, chosen.error)
