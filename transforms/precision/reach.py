"""The fewest layers of a quantized model that have to be float, or of more bits, for a target of its outputs.

Layers are ranked by the error that each makes alone, and as many are put back as the target takes, in a
session in which they are switched. The model is then quantized with them so, and judged on samples that were
not used for it: where it falls short, the search aims higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.model.copy_graph import copy_graph
from transforms.precision.bench import Bench, Progress
from transforms.precision.chosen import Reached
from transforms.precision.fewest import FewestLayers
from transforms.precision.finer_scheme import bytes_of_numbers, names_of, naming
from transforms.precision.switched_layers import SwitchedLayers
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.search.target import Target, TargetError

_ATTEMPTS = 6  # after which each one keeps at least twice as many layers as the last
_ROOM = 0.25  # dB that a search aims higher by, beside what held-out samples fell short by
_MORE = 1.3  # times as many layers, where a target is not in dB

Built = tuple[gs.Graph, Scheme]
Build = Callable[[Scheme], Built]
"""Quantizes the model anew by a scheme in which nothing is open; returns it with the scheme in use."""


def reach_target(
    first: Built,
    float_graph: gs.Graph,
    load: Callable[[], gs.Graph],
    build: Build,
    feeds: Sequence[Feed],
    judging: Sequence[Feed],
    target: Target,
    fallback: LayerRule,
    run: RunOptions | None = None,
    progress: Progress | None = None,
) -> Reached:
    """Return the model with as few layers in the fallback as are found for a target on ``judging`` feeds.

    ``first``: the quantized model; ``float_graph``: the float model as it was quantized; both stay as they
    are. ``load`` reads the float model, in which layers are named. Raises TargetError where no choice of
    layers reaches the target.
    """
    bench = Bench(float_graph, judging, target, run, progress)
    graph, scheme = first
    before = bench.score(graph)
    sizes = bytes_of_numbers(graph)
    if target.holds(before):
        return Reached(graph, scheme, (), 0, before, before, sizes, sizes, bench.left_out)
    model = SwitchedLayers(copy_graph(float_graph), copy_graph(graph), run)
    names = names_of(load, scheme)
    search = FewestLayers(model, feeds, target, bench.names, names)
    wanted, least = target, 0
    for attempt in count(1):
        kept = search.fewest(wanted, least)
        nodes = (node for i in kept for node in model.parts[i].nodes)
        named = naming(scheme, nodes, names, fallback)
        graph, used = build(named)
        after = bench.score(graph)
        if target.holds(after) and len(kept) == len(search.able):
            raise TargetError(
                f"only with every layer in {fallback.label} the target of {target.bound} is met: "
                f"{target.text(before)} with none"
            )
        if target.holds(after):
            parts = tuple(model.parts[i] for i in sorted(kept))
            last = bytes_of_numbers(graph)
            return Reached(graph, used, parts, len(model.parts), before, after, sizes, last, bench.left_out)
        if len(kept) == len(search.able):
            break
        wanted, least = _higher(target, wanted, after), _more(target, len(kept), attempt)
    raise TargetError(
        f"the target of {target.bound} cannot be met by layers in {fallback.label}: {target.text(before)} "
        f"with none, {target.text(after)} with {len(kept)} of {len(model.parts)}"
    )


def _higher(target: Target, wanted: Target, reached: float) -> Target:
    """Return the target of the next search; that of dB is raised by what was missed."""
    if target.metric != "sqnr" or not math.isfinite(reached):
        return wanted
    return replace(wanted, limit=wanted.limit + target.limit - reached + _ROOM)


def _more(target: Target, kept: int, attempt: int) -> int:
    """Return how many layers the next search keeps at least: a target of dB is raised, too."""
    if attempt >= _ATTEMPTS:
        return 2 * kept
    return kept + 1 if target.metric == "sqnr" else math.ceil(kept * _MORE) + 1
