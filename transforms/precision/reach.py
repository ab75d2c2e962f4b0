"""The fewest layers of a quantized model that have to be float, or of more bits, for a target of its outputs.

Layers are ranked by the error that each makes alone, and as many are put back as the target takes, in a
session in which they are switched. The model is then quantized with them so, and judged on samples that were
not used for it: where these do not show the target (:meth:`transforms.search.target.Target.is_shown`), the
search aims higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.deploy.low_precision import has_low_precision
from transforms.graph.some_names import counted, some_names
from transforms.judge.constants import GOAL_EVERY, MOST_SAMPLES
from transforms.judge.sample_roles import given_for_goal
from transforms.model.copy_graph import copy_graph
from transforms.precision.bench import Bench, Progress, goal_bench
from transforms.precision.chosen import Chosen, Reached
from transforms.precision.fewest import FewestLayers
from transforms.precision.finer_scheme import bytes_of_numbers, naming
from transforms.precision.held_out import GATE_EVERY, MOST_OF_GATES
from transforms.precision.switched_layers import SwitchedLayers
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.search.gate import Gate, GateError
from transforms.search.target import FloatAloneError, Scored, Target, TargetError

_ATTEMPTS = 6  # after which each one keeps at least twice as many layers as the last
_ROOM = 0.25  # dB that a search aims higher by, beside what held-out samples fell short by
_MOST_UNSURE = 3.0  # dB that a search aims higher by where only the standard error is too large
_BY_DECIBELS = 3  # searches that only aim higher
_SHARES = (0.25, 0.5, 0.75)  # of the layers that are finer in models that may miss a target
_NEAR = 50  # of so many parts, one more than needed is near enough
_MORE = 1.3  # times as many layers after these, or where a target is not in dB

Built = tuple[gs.Graph, Scheme]
Build = Callable[[Scheme], Built]
"""Quantizes the model anew by a scheme in which nothing is open; returns it with the scheme in use."""


@dataclass(frozen=True)
class _Try:
    """A model with some parts finer: its score, and whether anything in it is in low precision."""

    scored: Scored
    kept: Sequence[int] = ()
    is_low: bool = True


def choose_layers(
    first: gs.Graph,
    switched: Callable[[], SwitchedLayers],
    able: Callable[[], Set[str]],
    build: Callable[[Sequence[str]], gs.Graph],
    feeds: Sequence[Feed],
    bench: Bench,
    fallback: str,
    *,
    is_low: Callable[[gs.Graph], bool] = has_low_precision,
    allow_miss: bool = False,
) -> Chosen:
    """Return the model with as few finer layers as are found for the target of a bench.

    ``first``: the model without any, which stays as it is; ``switched``: the same with switches for layers;
    ``able``: names of nodes that can be chosen; ``build`` makes the model in which nodes of these names are
    in the ``fallback``, in words; ``is_low`` tells whether anything in such a model is in low precision.
    Layers are chosen on ``feeds``. Where no choice of them reaches the target on the samples of the bench,
    ``allow_miss`` takes the best model that was found with anything in low precision. Else it raises
    TargetError, as FloatAloneError where float alone reaches the target.
    """
    target = bench.target
    assert target is not None, "layers are chosen for it"
    before = bench.scored(first)
    none = Chosen(first, (), 0, before.value, before.value, before.error, bench.left_out)
    if target.is_shown(before):
        return none
    if isinstance(target, Gate) and (error := _beyond_float(target, before, bench.scored_float())):
        if allow_miss:
            return none
        raise error
    search = _Search(none, switched(), able(), build, feeds, bench, fallback, is_low)
    found = search.fewest() or (search.best() if allow_miss else None)
    if found is None:
        raise search.error()
    return found


class _Search:
    """Models with more and more parts in the fallback, each built and judged: ``tried``."""

    def __init__(
        self,
        none: Chosen,
        model: SwitchedLayers,
        names: Set[str],
        build: Callable[[Sequence[str]], gs.Graph],
        feeds: Sequence[Feed],
        bench: Bench,
        fallback: str,
        is_low: Callable[[gs.Graph], bool],
    ) -> None:
        """Rank the parts; ``none``: the model without any of them, ``names``: of nodes that can be chosen."""
        assert bench.target is not None, "layers are chosen for it"
        self._none, self._parts, self._build, self._bench = none, model.parts, build, bench
        self._fallback, self._is_low, self._target = fallback, is_low, bench.target
        self._before = Scored(none.before, none.error)
        self._search = FewestLayers(model, feeds, self._target, bench.names, names)
        self.tried: list[_Try] = []

    def fewest(self) -> Chosen | None:
        """Return the first model that reaches the target; None where none does, short of one in float."""
        target, able = self._target, len(self._search.able)
        wanted, least, failed = target, 0, 0
        for attempt in count(1):
            kept = self._search.fewest(wanted, least)
            graph, last = self._try(kept)
            if len(kept) == able or not last.is_low:
                return None
            if target.is_shown(last.scored):
                return self._chosen(*self._fewer(graph, last, failed))
            failed = len(kept)
            wanted, least = _higher(target, wanted, last.scored), _more(target, len(kept), attempt)
            if isinstance(target, Gate) and 4 * len(kept) < 3 * able <= 3 * least:  # before all
                least = (len(kept) + able + 1) // 2
        return None

    def _fewer(self, graph: gs.Graph, last: _Try, failed: int) -> tuple[gs.Graph, _Try]:
        """Return a model that reaches the target with fewer of the same parts: more than ``failed``.

        It is the one that was built last.
        """
        kept, best, most = last.kept, (graph, last), len(last.kept)
        while most - failed > max(1, len(self._parts) // _NEAR):
            middle = (failed + most) // 2
            found = self._try(kept[:middle])
            if self._target.is_shown(found[1].scored):
                best, most = found, middle
            else:
                failed = middle
        return best if self.tried[-1] is best[1] else self._try(kept[:most])

    def best(self) -> Chosen:
        """Return the model with anything in low precision that samples show to be nearest to the target.

        A search that went on to all layers at once, for a target too high, has tried none in between.
        """
        able, target = self._search.able, self._target
        counts = {math.floor(len(able) * share) for share in _SHARES} - {len(one.kept) for one in self.tried}
        for some in sorted(counts - {0}):
            self._try(able[:some])
        sign = 1 if target.larger_is_better else -1
        low = [_Try(self._before), *(one for one in self.tried if one.is_low)]
        best = max(low, key=lambda one: sign * target.worse_end(one.scored))
        return self._chosen(*self._try(best.kept)) if best.kept else self._none

    def error(self) -> TargetError:
        """Return why none of the models reaches the target."""
        error = _unreached(self._target, self._before, self.tried, len(self._parts), self._fallback)
        if not isinstance(self._target, Gate):
            return error
        worst = some_names([self._parts[i].name for i in self._search.able])
        return GateError(f"{error}; most of the error comes from {worst}")

    def _try(self, kept: Sequence[int]) -> tuple[gs.Graph, _Try]:
        graph = self._build([node for i in kept for node in self._parts[i].nodes])
        self.tried.append(_Try(self._bench.scored(graph), kept, self._is_low(graph)))
        return graph, self.tried[-1]

    def _chosen(self, graph: gs.Graph, one: _Try) -> Chosen:
        layers = tuple(self._parts[i] for i in sorted(one.kept))
        return self._none.with_layers(graph, layers, len(self._parts), one.scored)


def _beyond_float(target: Gate, before: Scored, best: Scored) -> GateError | None:
    """Return the error if not even the outputs of the float model show the bound."""
    if target.is_shown(best):
        return None
    said, itself = target.text(before.value, before.error), "with the float model itself"
    if target.holds(best.value):
        return GateError(f"{said}; {too_few_samples(target, best, itself)}; no layer is at fault")
    both = f"{said}, {target.text(best.value, best.error)} {itself} on {counted(best.samples, 'sample')}"
    return GateError(f"{both}: the target is {target.bound}, and no layer is at fault")


def _unreached(
    target: Target, before: Scored, tried: Sequence[_Try], parts: int, fallback: str
) -> TargetError:
    """Return why none of some models reaches a target, the last of which has every layer finer."""
    last = tried[-1]
    unmet = target.unmet if last.is_low else FloatAloneError
    every = f"only with every layer in {fallback}"
    unsure = [one for one in tried if target.holds(one.scored.value) and not target.is_shown(one.scored)]
    if unsure:
        share = f"with {len(unsure[-1].kept)} of {parts} layers in {fallback}"
        error = too_few_samples(target, unsure[-1].scored, share)
        return unmet(f"{every} is the target shown: {error}") if target.is_shown(last.scored) else error
    none, after = f"{target.text(before.value, before.error)} with none", last.scored
    if target.is_shown(after):
        return unmet(f"{every} the target of {target.bound} is met: {none}")
    return target.unmet(
        f"the target of {target.bound} cannot be met by layers in {fallback}: {none}, "
        f"{target.text(after.value, after.error)} with {len(last.kept)} of {parts}"
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
    names: Callable[[], Set[str]],
    build: Build,
    feeds: Sequence[Feed],
    judging: Sequence[Feed],
    target: Target,
    fallback: LayerRule,
    run: RunOptions | None = None,
    progress: Progress | None = None,
    *,
    allow_miss: bool = False,
) -> Reached:
    """Return the model with as few layers in the fallback as are found for a target on ``judging`` feeds.

    ``first``: the quantized model; ``float_graph``: the float model as it was quantized; both stay as they
    are. ``names``: those of nodes that a scheme can name. Where no choice of layers reaches the
    target, it raises TargetError, or with ``allow_miss`` takes the best model, as :func:`choose_layers` does.
    """
    graph, scheme = first
    used = scheme

    def _built(nodes: Sequence[str]) -> gs.Graph:
        nonlocal used
        built, used = build(naming(scheme, nodes, names(), fallback))
        return built

    def _switched() -> SwitchedLayers:
        return SwitchedLayers(copy_graph(float_graph), copy_graph(graph), run)

    bench = goal_bench(float_graph, judging, target, run, progress)
    found = choose_layers(
        graph, _switched, names, _built, feeds, bench, fallback.label, allow_miss=allow_miss
    )
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
