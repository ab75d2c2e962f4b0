"""Move the fewest layers of a quantized model to float, or to more bits, with which it meets a target.

Layers are ranked by the error that each causes alone, and as many are moved as the target needs, in a session
with a switch for each layer. The model is then quantized anew with these layers in the fallback format and
judged on held-out samples. If these do not show the target
(:meth:`transforms.search.target.Target.is_shown`), the search aims higher.
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

_ATTEMPTS = 6  # from this attempt on, each moves at least twice as many layers as the last
_ROOM = 0.25  # dB by which the next search aims higher, in addition to what held-out samples fell short by
_MOST_UNSURE = 3.0  # dB by which it aims higher at most if only the standard error is too large
_BY_DECIBELS = 3  # attempts that only aim higher
_SHARES = (0.25, 0.5, 0.75)  # shares of finer layers to try before taking a model that misses the target
_NEAR = 10  # the binary search for the fewest layers ends at one tenth of them
_MORE = 1.3  # growth of the number of layers in later attempts, and for targets that are not in dB

Built = tuple[gs.Graph, Scheme]
Build = Callable[[Scheme], Built]
"""Quantizes the model anew by a scheme without keys to decide; returns it with the scheme in use."""


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
    """Return the model with the fewest finer layers that the search finds for the target of a bench.

    ``first``: the model without finer layers, which is not changed; ``switched``: makes the same model with a
    switch for each layer; ``able``: returns the names of nodes that can be chosen; ``build``: makes the model
    in which the named nodes have the ``fallback`` format (a label for errors); ``is_low``: whether anything
    in a model is in low precision. Layers are chosen on ``feeds``, models judged on the samples of the bench.

    If no choice of layers reaches the target, ``allow_miss`` returns the best model with anything in low
    precision. Else raises TargetError: FloatAloneError if only float reaches the target, or only a model of
    more than ``LARGEST`` times ``float_bytes`` although ``first`` is smaller than that (``first`` may store
    blocks as floats).
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
    chosen = search.fewest() or (search.best() if allow_miss else None)
    if chosen is None:
        raise search.error()
    return chosen


class _Search:
    """Builds and judges models with more and more layers in the fallback format; ``tried``: their scores."""

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
        """Rank the layers; ``none``: the model without any of them, ``names``: nodes that can be chosen."""
        assert bench.target is not None, "layers are chosen for it"
        self._none, self._layers, self._build, self._bench = none, model.parts, build, bench
        self._fallback, self._is_low, self._target = fallback, is_low, bench.target
        self._float_bytes = float_bytes
        self._before = Scored(none.before, none.error)
        self._search = FewestLayers(model, feeds, self._target, bench.names, names)
        self.tried: list[Try] = []

    def fewest(self) -> Chosen | None:
        """Return a model that reaches the target; None if only one in float does, or none."""
        target, able = self._target, len(self._search.able)
        aim, least, failed = target, 0, 0
        for attempt in count(1):
            indices = self._search.fewest(aim, least)
            graph, last = self._try(indices)
            # held-out samples decide; a model that reaches the target may have more layers than it needs
            is_worth = len(indices) < able and self._is_worth(last)
            if target.is_shown(last.scored) or not last.is_low:
                fewest = self._fewer((graph, last) if is_worth else None, indices, failed)
                return None if fewest is None else self._chosen(*fewest)
            if not is_worth:
                return None
            failed = len(indices)
            # the search saw other samples: aim higher by what was missed, and move more layers
            aim, least = _higher(target, aim, last.scored), _more(target, len(indices), attempt)
            if isinstance(target, Gate) and 4 * len(indices) < 3 * able <= 3 * least:  # half before all
                least = (len(indices) + able + 1) // 2
        return None

    def _fewer(
        self, best: tuple[gs.Graph, Try] | None, indices: Sequence[int], failed: int
    ) -> tuple[gs.Graph, Try] | None:
        """Return a model that reaches the target with the first of the layers, more than ``failed`` of them.

        ``best``: the model with all of them, None if it is not worth writing. The returned model is also the
        one built last.
        """
        most = len(indices)
        while most - failed > max(1, most // _NEAR):
            middle = (failed + most) // 2
            trial = self._try(indices[:middle])
            if not self._is_worth(trial[1]):
                most = middle
            elif self._target.is_shown(trial[1].scored):
                best, most = trial, middle
            else:
                failed = middle
        if best is None or self.tried[-1] is best[1]:
            return best
        return self._built(best[1].kept), best[1]

    def _is_worth(self, model: Try) -> bool:
        """Return whether anything in a model is in low precision, and it is clearly smaller than in float."""
        return model.is_low and model.size <= LARGEST * self._float_bytes

    def best(self) -> Chosen:
        """Return the model in low precision whose shown metric is nearest to the target.

        For a target far out of reach, the search may have gone to all layers at once: try some shares first.
        """
        able, target = self._search.able, self._target
        counts = {math.floor(len(able) * share) for share in _SHARES} - {
            len(trial.kept) for trial in self.tried
        }
        for number in sorted(counts - {0}):
            self._try(able[:number])
        sign = 1 if target.larger_is_better else -1
        candidates = [Try(self._before), *filter(self._is_worth, self.tried)]
        best = max(candidates, key=lambda trial: sign * target.worse_end(trial.scored))
        return self._chosen(*self._try(best.kept)) if best.kept else self._none

    def error(self) -> TargetError:
        """Return the error for a target that no model reaches."""
        tried = sorted(self.tried, key=lambda trial: len(trial.kept))
        if any(trial.is_low and not self._is_worth(trial) for trial in tried):
            error = too_large(self._target, self._before, tried, self._float_bytes, self._fallback)
        else:
            error = unreached(self._target, self._before, tried, len(self._layers), self._fallback)
        if not isinstance(self._target, Gate):
            return error
        worst = some_names([self._layers[i].name for i in self._search.able])
        return GateError(f"{error}; most of the error comes from {worst}")

    def _try(self, indices: Sequence[int]) -> tuple[gs.Graph, Try]:
        graph = self._built(indices)
        size = bytes_of_numbers(graph)
        self.tried.append(Try(self._bench.scored(graph), indices, self._is_low(graph), size))
        return graph, self.tried[-1]

    def _built(self, indices: Sequence[int]) -> gs.Graph:
        return self._build([node for i in indices for node in self._layers[i].nodes])

    def _chosen(self, graph: gs.Graph, trial: Try) -> Chosen:
        layers = tuple(self._layers[i] for i in sorted(trial.kept))
        return self._none.with_layers(graph, layers, len(self._layers), trial.scored)


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
    """Return the model with the fewest layers in the fallback format that meets a target.

    ``first``: the quantized model and its scheme; ``float_graph``: the float model in the form that was
    quantized; both are not changed. ``names``: returns the names of nodes that a scheme can name. Layers are
    chosen on ``feeds``, models judged on the ``judging`` feeds. If no choice of layers reaches the target,
    raises TargetError, or with ``allow_miss`` returns the best model, as :func:`choose_layers` does.
    ``allow_large``: the model may be as large as the float model. ``of_fold``: makes the model that was built
    last without the ranges of one fold, if the judging samples gave ranges.
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
    chosen = choose_layers(
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
    sizes = bytes_of_numbers(graph), bytes_of_numbers(chosen.graph)
    return Reached(**vars(chosen), scheme=used, bytes_before=sizes[0], bytes_after=sizes[1])


def _higher(target: Target, aim: Target, scored: Scored) -> Target:
    """Return the target of the next search: in dB, the last one raised by what was missed."""
    if target.metric != "sqnr" or not math.isfinite(scored.value):
        return aim
    missed = max(target.limit - scored.value, min(target.limit - target.worse_end(scored), _MOST_UNSURE))
    return replace(aim, limit=aim.limit + missed + _ROOM)


def _more(target: Target, last: int, attempt: int) -> int:
    """Return the least number of layers of the next attempt, more than in the last one."""
    if attempt >= _ATTEMPTS:
        return 2 * last
    aims_higher = target.metric == "sqnr" and attempt <= _BY_DECIBELS
    return last + 1 if aims_higher else math.ceil(last * _MORE) + 1
