"""The fewest layers of a quantized model that have to be float, or of more bits, for a target of its outputs.

Layers are ranked by the error that each makes alone, and as many are put back as the target takes, in a
session in which they are switched. The model is then quantized with them so, and judged on samples that were
not used for it: where these do not show the target (:meth:`transforms.search.target.Target.is_shown`), the
search aims higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import cache
from itertools import count

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph.some_names import counted, some_names
from transforms.judge.constants import GOAL_EVERY, MOST_SAMPLES
from transforms.judge.sample_roles import given_for_goal
from transforms.model.copy_graph import copy_graph
from transforms.precision.bench import Bench, Progress, goal_bench
from transforms.precision.chosen import Chosen, Reached
from transforms.precision.fewest import FewestLayers
from transforms.precision.finer_scheme import bytes_of_numbers, names_of, naming
from transforms.precision.held_out import GATE_EVERY, MOST_OF_GATES
from transforms.precision.switched_layers import SwitchedLayers
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.search.gate import Gate, GateError
from transforms.search.target import Scored, Target, TargetError

_ATTEMPTS = 6  # after which each one keeps at least twice as many layers as the last
_ROOM = 0.25  # dB that a search aims higher by, beside what held-out samples fell short by
_MOST_UNSURE = 3.0  # dB that a search aims higher by where only the standard error is too large
_BY_DECIBELS = 3  # searches that only aim higher
_MORE = 1.3  # times as many layers after these, or where a target is not in dB

Built = tuple[gs.Graph, Scheme]
Build = Callable[[Scheme], Built]
"""Quantizes the model anew by a scheme in which nothing is open; returns it with the scheme in use."""


def choose_layers(
    first: gs.Graph,
    switched: Callable[[], SwitchedLayers],
    able: Callable[[], Set[str]],
    build: Callable[[Sequence[str]], gs.Graph],
    feeds: Sequence[Feed],
    bench: Bench,
    fallback: str,
) -> Chosen:
    """Return the model with as few finer layers as are found for the target of a bench.

    ``first``: the model without any, which stays as it is; ``switched``: the same with switches for layers;
    ``able``: names of nodes that can be chosen; ``build`` makes the model in which nodes of these names are
    in the ``fallback``, in words. Layers are chosen on ``feeds``. Raises TargetError where no choice of them
    reaches the target on the samples of the bench.
    """
    target = bench.target
    assert target is not None, "layers are chosen for it"
    before = bench.scored(first)
    if target.is_shown(before):
        return Chosen(first, (), 0, before.value, before.value, before.error, bench.left_out)
    if isinstance(target, Gate):
        _require_float(target, before, bench.scored_float())
    model = switched()
    search = FewestLayers(model, feeds, target, bench.names, able())
    tried = list[tuple[Scored, str]]()
    wanted, least = target, 0
    for attempt in count(1):
        kept = search.fewest(wanted, least)
        graph = build([node for i in kept for node in model.parts[i].nodes])
        after = bench.scored(graph)
        tried.append((after, f"with {len(kept)} of {len(model.parts)}"))
        if len(kept) == len(search.able):
            break
        if target.is_shown(after):
            layers = tuple(model.parts[i] for i in sorted(kept))
            figures = before.value, after.value, after.error
            return Chosen(graph, layers, len(model.parts), *figures, bench.left_out)
        wanted, least = _higher(target, wanted, after), _more(target, len(kept), attempt)
        if isinstance(target, Gate) and 4 * len(kept) < 3 * len(search.able) <= 3 * least:  # before all
            least = (len(kept) + len(search.able) + 1) // 2
    error = _unreached(target, before, tried, fallback)
    if isinstance(target, Gate):
        worst = some_names([model.parts[i].name for i in search.able])
        raise GateError(f"{error}; most of the error comes from {worst}")
    raise error


def _require_float(target: Gate, before: Scored, best: Scored) -> None:
    """Raise GateError where not even the outputs of the float model show the bound."""
    if target.is_shown(best):
        return
    said, itself = target.text(before.value, before.error), "with the float model itself"
    if target.holds(best.value):
        raise GateError(f"{said}; {too_few_samples(target, best, itself)}; no layer is at fault")
    both = f"{said}, {target.text(best.value, best.error)} {itself} on {counted(best.samples, 'sample')}"
    raise GateError(f"{both}: the target is {target.bound}, and no layer is at fault")


def _unreached(
    target: Target, before: Scored, tried: Sequence[tuple[Scored, str]], fallback: str
) -> TargetError:
    """Return why none of some models reaches a target, the last of which has every layer finer.

    ``tried``: their scores, each with its number of finer layers in words.
    """
    unsure = [one for one in tried if target.holds(one[0].value) and not target.is_shown(one[0])]
    if unsure:
        scored, share = unsure[-1]
        error = too_few_samples(target, scored, f"{share} layers in {fallback}")
        if target.is_shown(tried[-1][0]):
            return target.unmet(f"only with every layer in {fallback} is the target shown: {error}")
        return error
    none, (after, share) = f"{target.text(before.value, before.error)} with none", tried[-1]
    if target.is_shown(after):
        return target.unmet(
            f"only with every layer in {fallback} the target of {target.bound} is met: {none}"
        )
    return target.unmet(
        f"the target of {target.bound} cannot be met by layers in {fallback}: {none}, "
        f"{target.text(after.value, after.error)} {share}"
    )


def too_few_samples(target: Target, scored: Scored, what: str) -> TargetError:
    """Return the error for samples that meet a target, but may do so by chance, with how many show it.

    ``what``: the model, in words.
    """
    judge = counted(scored.samples, "sample")
    said = (
        f"{judge} cannot show the target of {target.bound}: {target.text(scored.value, scored.error)} {what}"
    )
    needed = target.samples_needed(scored)
    of_gate = isinstance(target, Gate)
    every, most = (GATE_EVERY, MOST_OF_GATES) if of_gate else (GOAL_EVERY, MOST_SAMPLES)
    given = None if needed is None else given_for_goal(needed, every, most)
    if needed is None or given is None:
        shown = target.text(target.worse_end(scored))
        return target.unmet(f"{said}: {shown} is shown, and no more than {most} samples judge")
    more = needed - scored.samples
    return target.unmet(f"{said}; about {more} more that judge would: give {given} samples or more")


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
    graph, scheme = first
    names = cache(lambda: names_of(load, scheme))
    used = scheme

    def _built(nodes: Sequence[str]) -> gs.Graph:
        nonlocal used
        built, used = build(naming(scheme, nodes, names(), fallback))
        return built

    def _switched() -> SwitchedLayers:
        return SwitchedLayers(copy_graph(float_graph), copy_graph(graph), run)

    bench = goal_bench(float_graph, judging, target, run, progress)
    found = choose_layers(graph, _switched, names, _built, feeds, bench, fallback.label)
    sizes = bytes_of_numbers(graph), bytes_of_numbers(found.graph)
    return Reached(**vars(found), scheme=used, bytes_before=sizes[0], bytes_after=sizes[1])


def _higher(target: Target, wanted: Target, scored: Scored) -> Target:
    """Return the target of the next search; that of dB is raised by what was missed."""
    if target.metric != "sqnr" or not math.isfinite(scored.value):
        return wanted
    missed = max(target.limit - scored.value, min(target.limit - target.worse_end(scored), _MOST_UNSURE))
    return replace(wanted, limit=wanted.limit + missed + _ROOM)


def _more(target: Target, kept: int, attempt: int) -> int:
    """Return how many layers the next search keeps at least: more than were too few."""
    if attempt >= _ATTEMPTS:
        return 2 * kept
    is_told = target.metric == "sqnr" and attempt <= _BY_DECIBELS
    return kept + 1 if is_told else math.ceil(kept * _MORE) + 1
