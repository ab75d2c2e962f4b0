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
from itertools import count

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.deploy.low_precision import has_low_precision
from transforms.graph.constants import bytes_of_numbers
from transforms.graph.some_names import some_names
from transforms.precision.bench import Bench, ModelOf, Progress, goal_bench
from transforms.precision.chosen import Chosen, Reached
from transforms.precision.fewest import FewestLayers
from transforms.precision.finer_scheme import naming
from transforms.precision.switched_layers import SwitchedLayers
from transforms.precision.unreached import LARGEST, Try, beyond_float, too_large, unreached
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.search.gate import Gate, GateError
from transforms.search.target import Scored, Target, TargetError

_ATTEMPTS = 6  # after which each one keeps at least twice as many layers as the last
_ROOM = 0.25  # dB that a search aims higher by, beside what held-out samples fell short by
_MOST_UNSURE = 3.0  # dB that a search aims higher by where only the standard error is too large
_BY_DECIBELS = 3  # searches that only aim higher
_SHARES = (0.25, 0.5, 0.75)  # of the layers that are finer in models that may miss a target
_NEAR = 10  # of so many layers, one more than needed is near enough
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
    *,
    is_low: Callable[[gs.Graph], bool] = has_low_precision,
    allow_miss: bool = False,
    float_bytes: float = math.inf,
) -> Chosen:
    """Return the model with as few finer layers as are found for the target of a bench.

    ``first``: the model without any, which stays as it is; ``switched``: the same with switches for layers;
    ``able``: names of nodes that can be chosen; ``build`` makes the model in which nodes of these names are
    in the ``fallback``, in words; ``is_low`` tells whether anything in such a model is in low precision.
    Layers are chosen on ``feeds``. Where no choice of them reaches the target on the samples of the bench,
    ``allow_miss`` takes the best model that was found with anything in low precision. Else it raises
    TargetError, as FloatAloneError where float alone reaches the target, or a model of more than
    ``LARGEST`` of so many ``float_bytes``, if ``first`` is smaller (blocks may be stored as floats).
    """
    target = bench.target
    assert target is not None, "layers are chosen for it"
    before = bench.scored(first)
    none = Chosen(first, (), 0, before.value, before.value, before.error, bench.left_out)
    if target.is_shown(before):
        return none
    if isinstance(target, Gate) and (error := beyond_float(target, before, bench.scored_float())):
        if allow_miss:
            return none
        raise error
    if bytes_of_numbers(first) > LARGEST * float_bytes:
        float_bytes = math.inf
    search = _Search(none, switched(), able(), build, feeds, bench, fallback, is_low, float_bytes)
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
        float_bytes: float,
    ) -> None:
        """Rank the parts; ``none``: the model without any of them, ``names``: of nodes that can be chosen."""
        assert bench.target is not None, "layers are chosen for it"
        self._none, self._parts, self._build, self._bench = none, model.parts, build, bench
        self._fallback, self._is_low, self._target = fallback, is_low, bench.target
        self._float_bytes = float_bytes
        self._before = Scored(none.before, none.error)
        self._search = FewestLayers(model, feeds, self._target, bench.names, names)
        self.tried: list[Try] = []

    def fewest(self) -> Chosen | None:
        """Return the first model that reaches the target; None where none does, short of one in float."""
        target, able = self._target, len(self._search.able)
        wanted, least, failed = target, 0, 0
        for attempt in count(1):
            kept = self._search.fewest(wanted, least)
            graph, last = self._try(kept)
            is_worth = len(kept) < able and self._is_worth(last)
            if target.is_shown(last.scored) or not last.is_low:
                found = self._fewer((graph, last) if is_worth else None, kept, failed)
                return None if found is None else self._chosen(*found)
            if not is_worth:
                return None
            failed = len(kept)
            wanted, least = _higher(target, wanted, last.scored), _more(target, len(kept), attempt)
            if isinstance(target, Gate) and 4 * len(kept) < 3 * able <= 3 * least:  # before all
                least = (len(kept) + able + 1) // 2
        return None

    def _fewer(
        self, best: tuple[gs.Graph, Try] | None, kept: Sequence[int], failed: int
    ) -> tuple[gs.Graph, Try] | None:
        """Return a model that reaches the target with fewer of the parts: more than ``failed``.

        ``best``: that with all of them, None where it is not worth it. The result is the one built last.
        """
        most = len(kept)
        while most - failed > max(1, most // _NEAR):
            middle = (failed + most) // 2
            found = self._try(kept[:middle])
            if not self._is_worth(found[1]):
                most = middle
            elif self._target.is_shown(found[1].scored):
                best, most = found, middle
            else:
                failed = middle
        if best is None or self.tried[-1] is best[1]:
            return best
        return self._built(best[1].kept), best[1]

    def _is_worth(self, tried: Try) -> bool:
        """Return whether a model is in low precision, and small enough beside the float model."""
        return tried.is_low and tried.size <= LARGEST * self._float_bytes

    def best(self) -> Chosen:
        """Return the model with anything in low precision that samples show to be nearest to the target.

        A search that went on to all layers at once, for a target too high, has tried none in between.
        """
        able, target = self._search.able, self._target
        counts = {math.floor(len(able) * share) for share in _SHARES} - {len(one.kept) for one in self.tried}
        for some in sorted(counts - {0}):
            self._try(able[:some])
        sign = 1 if target.larger_is_better else -1
        low = [Try(self._before), *filter(self._is_worth, self.tried)]
        best = max(low, key=lambda one: sign * target.worse_end(one.scored))
        return self._chosen(*self._try(best.kept)) if best.kept else self._none

    def error(self) -> TargetError:
        """Return why none of the models reaches the target."""
        tried = sorted(self.tried, key=lambda one: len(one.kept))
        if any(one.is_low and not self._is_worth(one) for one in tried):
            error = too_large(self._target, self._before, tried, self._float_bytes, self._fallback)
        else:
            error = unreached(self._target, self._before, tried, len(self._parts), self._fallback)
        if not isinstance(self._target, Gate):
            return error
        worst = some_names([self._parts[i].name for i in self._search.able])
        return GateError(f"{error}; most of the error comes from {worst}")

    def _try(self, kept: Sequence[int]) -> tuple[gs.Graph, Try]:
        graph = self._built(kept)
        size = bytes_of_numbers(graph)
        self.tried.append(Try(self._bench.scored(graph), kept, self._is_low(graph), size))
        return graph, self.tried[-1]

    def _built(self, kept: Sequence[int]) -> gs.Graph:
        return self._build([node for i in kept for node in self._parts[i].nodes])

    def _chosen(self, graph: gs.Graph, one: Try) -> Chosen:
        layers = tuple(self._parts[i] for i in sorted(one.kept))
        return self._none.with_layers(graph, layers, len(self._parts), one.scored)


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
    allow_large: bool = False,
    of_fold: ModelOf | None = None,
) -> Reached:
    """Return the model with as few layers in the fallback as are found for a target on ``judging`` feeds.

    ``first``: the quantized model; ``float_graph``: the float model as it was quantized; both stay as they
    are. ``names``: those of nodes that a scheme can name. Where no choice of layers reaches the
    target, it raises TargetError, or with ``allow_miss`` takes the best model, as :func:`choose_layers` does.
    ``allow_large``: a model may be as large as the float model. ``of_fold``: makes the model that was built
    last for each fold of the samples that judge, if these have given ranges.
    """
    graph, scheme = first
    used = scheme

    def _built(nodes: Sequence[str]) -> gs.Graph:
        nonlocal used
        built, used = build(naming(scheme, nodes, names(), fallback))
        return built

    def _switched() -> SwitchedLayers:
        return SwitchedLayers(bench.viewed(float_graph), bench.viewed(graph), run)

    bench = goal_bench(float_graph, judging, target, run, progress, of_fold=of_fold)
    found = choose_layers(
        graph,
        _switched,
        names,
        _built,
        feeds,
        bench,
        fallback.label,
        allow_miss=allow_miss,
        float_bytes=math.inf if allow_large else bytes_of_numbers(float_graph),
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
