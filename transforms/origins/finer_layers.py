"""The fewest layers of a quantized model that have to be float, or of more bits, for a target of its outputs.

Layers are ranked by the error that each makes alone, and as many are put back as the target takes, in a
session in which they are switched. The model is then quantized with them so, and judged on samples that were
not used for it: where it falls short, the search aims higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.metrics import without_row_means
from transforms.full_range.recorded_shifts import shifts_within
from transforms.graph.output_view import output_view
from transforms.graph.state_outputs import found_pairs
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.origins.named_layers import bytes_of_numbers, names_of, naming
from transforms.origins.readings import OUTPUT
from transforms.origins.switched_layers import Part, SwitchedLayers, Trials
from transforms.run.feeds import spread
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.scheme import FLOAT32
from transforms.search.group_search import add_in_groups
from transforms.search.output_metrics import METRICS, OutputsPair, least_sqnr, lost_top1
from transforms.search.target import LOST_TOP1, Target, TargetError

FALLBACKS = ("float32", "int16", "bf16")
"""What layers may have instead, by the names of the option."""

_SEARCHED_ON, _RANKING_RUNS = 8, 256
"""Samples that layers are chosen on; runs in which they are ranked, on as many samples as come to that."""

_ATTEMPTS = 6  # after which each one keeps at least twice as many layers as the last
_ROOM = 0.25  # dB that a search aims higher by, beside what held-out samples fell short by
_MORE = 1.3  # times as many layers, where a target is not in dB

Built = tuple[gs.Graph, Scheme]
Build = Callable[[Scheme], Built]
"""Quantizes the model anew by a scheme in which nothing is open; returns it with the scheme in use."""

Progress = Callable[[int, str], None]
"""Told how many models were measured, and what the last one reached, in words."""


@dataclass(frozen=True)
class Reached:
    """The model that reaches a target, its scheme, the layers that became finer, and how many there are.

    ``before`` and ``after``: the metric on the samples that judge. ``bytes_before`` and ``bytes_after``: of
    the stored numbers. ``left_out``: outputs that the target does not hold for.
    """

    graph: gs.Graph
    scheme: Scheme
    layers: tuple[Part, ...]
    count: int
    before: float
    after: float
    bytes_before: int
    bytes_after: int
    left_out: tuple[str, ...]


def fallback_rule(name: str, scheme: Scheme) -> LayerRule:
    """Return the formats of layers that fall back; ValueError if they have them already.

    Where weights alone are quantized, those of the layers are all that gets finer.
    """
    activation = scheme.format(scheme.activation)
    is_unsigned = activation is not None and activation.is_integer and not activation.is_signed
    formats = {"float32": ("float32", "float32"), "bf16": ("bfloat16", "bfloat16")}
    pair = formats.get(name, ("uint16" if is_unsigned else "int16", "int16"))
    rule = LayerRule(FLOAT32 if activation is None else pair[0], pair[1])
    if (rule.activation, rule.weight) == (scheme.activation, scheme.weight):
        raise ValueError(f"fallback '{name}': the formats of this scheme are {rule.label} already")
    return rule


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
    bench = _Bench(float_graph, judging, target, run, progress)
    graph, scheme = first
    before = bench.score(graph)
    sizes = bytes_of_numbers(graph)
    if target.holds(before):
        return Reached(graph, scheme, (), 0, before, before, sizes, sizes, bench.left_out)
    model = SwitchedLayers(copy_graph(float_graph), copy_graph(graph), run)
    names = names_of(load, scheme)
    search = _Search(model, feeds, target, bench.names, names)
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


class _Bench:
    """Samples that judge, with what the float model makes of them.

    The target holds for each output. Of a model that makes logits, caches are left out, whose numbers these
    are made of; of a share of rows, outputs that are fed back: a state has no answer in a row.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        feeds: Sequence[Feed],
        target: Target,
        run: RunOptions | None,
        progress: Progress | None,
    ) -> None:
        self._judge, self._target, self._progress = Judge(float_graph, feeds, run), target, progress
        outputs = self._judge.reference.outputs
        if not outputs:
            raise ValueError("the model has no output of a floating type to hold to a target")
        states = set(found_pairs(float_graph).values()) if target.metric == LOST_TOP1 else ()
        self.names = [name for name in outputs if name not in states] or outputs
        caches = output_view(float_graph).caches
        self.left_out = tuple(
            str(one.name)
            for one in float_graph.outputs
            if one.name in caches or (one.name in outputs and one.name not in self.names)
        )
        self._samples, self._count = self._judge.reference.samples(self._judge.count), 0

    def score(self, graph: gs.Graph) -> float:
        """Return the metric of a quantized model, which stays as it is."""
        run = self._judge.opened(copy_graph(graph), shifts_within(graph))
        logits = self._judge.reference.logits

        def _pairs() -> Iterator[OutputsPair]:
            for sample in self._samples:
                made = run(sample.feed)
                expected, found = _of(self.names, sample.expected), _of(self.names, made)
                yield without_row_means(expected, logits), without_row_means(found, logits)

        value = score(self._target, _pairs())
        self._count += 1
        if self._progress:
            self._progress(self._count, self._target.text(value))
        return value


def score_of(
    graph: gs.Graph,
    float_graph: gs.Graph,
    feeds: Sequence[Feed],
    target: Target,
    run: RunOptions | None = None,
) -> float:
    """Return the metric of a target of a quantized model, which stays as it is, on some feeds."""
    return _Bench(float_graph, feeds, target, run, None).score(graph)


def score(target: Target, pairs: Iterable[OutputsPair]) -> float:
    """Return the metric of a target over samples; the SQNR is that of the worst output."""
    if target.metric == "sqnr":
        return least_sqnr(pairs)
    return METRICS[target.metric].score(pairs) if target.metric in METRICS else lost_top1(pairs)


def _of(names: Sequence[str], made: Feed) -> Feed:
    """Return the arrays of these names that a run made."""
    return {name: made[name] for name in names if name in made}


class _Search:
    """Chooses layers in a session in which they are switched."""

    def __init__(
        self,
        model: SwitchedLayers,
        feeds: Sequence[Feed],
        target: Target,
        outputs: Sequence[str],
        names: set[str],
    ) -> None:
        """Rank layers by the error of ``outputs``; ``names`` are those of nodes that a scheme can name."""
        some = min(len(feeds), _SEARCHED_ON)
        few = max(1, min(some, _RANKING_RUNS // len(model.parts)))
        self._model = model
        self._ranks, self._trials = (Trials(model, spread(feeds, count)) for count in (few, some))
        self._outputs = [name for name in outputs if name in model.outputs] or model.outputs
        self._metric = target
        self._known: dict[frozenset[int], float] = {}
        able = (i for i, part in enumerate(model.parts) if _can_be_named(part, names))
        self.able = sorted(able, key=lambda i: (-self._alone(i), i))

    def fewest(self, target: Target, least: int) -> list[int]:
        """Return parts that reach a target on these samples, with those that matter most at least so many."""

        def _holds(kept: Sequence[int]) -> bool:
            return target.holds(self._score(kept))

        low, high = 0, 1
        while high < len(self.able) and not _holds(self.able[:high]):
            low, high = high, high * 2
        high = min(high, len(self.able))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _holds(self.able[:middle]) else (middle, high)
        found = self.able[:high]
        given_up = set(add_in_groups(found[::-1], lambda one: _holds([i for i in found if i not in one])))
        found = [i for i in found if i not in given_up]
        if self._metric.metric != "sqnr":
            return self.able[: max(least, len(found))]
        others = [i for i in self.able if i not in found]
        return found + others[: max(least - len(found), 0)]

    def _alone(self, part: int) -> float:
        sums = [self._ranks.pooled((part,), name) for name in self._outputs]
        signals = ((one.error_energy, one.baseline_energy) for one in sums)
        return sum(error / signal for error, signal in signals if signal)

    def _score(self, kept: Sequence[int]) -> float:
        key = frozenset(kept)
        if key not in self._known:
            on = self._trials.everything - key
            runs = zip(self._trials.feeds, self._trials.expected, strict=True)
            pairs = (
                (_of(self._outputs, expected), self._model.run(feed, on, self._outputs))
                for feed, expected in runs
            )
            self._known[key] = score(self._metric, pairs)
        return self._known[key]


def _can_be_named(part: Part, names: Set[str]) -> bool:
    return any(node in names or node.startswith(OUTPUT) for node in part.nodes)
