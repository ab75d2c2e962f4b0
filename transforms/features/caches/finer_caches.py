"""Attentions whose caches stay in 8 bits beside others in 4, by the divergence that they leave.

All in 4 bits are measured first. Where that is too much, each attention is measured alone, on one text, in
the float model: divergences of attentions add up within a tenth. Those that get 4 bits are then measured
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float32Array
from transforms.features.caches.cache_view import CacheView
from transforms.features.caches.coded_caches import coded_caches
from transforms.graph.selection import label_of
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.quantize_caches import Cache, find_caches, quantize_caches
from transforms.run.events import Events, each_told
from transforms.runtime.session import RunOptions

MOST_NATS = 0.015
"""The divergence that caches in 4 bits may leave on the samples; texts that chose nothing, twice as
long, have 0.029 with weights in int8, 42 of the 60 caches of SmolLM2-135M in 4 bits."""

Arrays = Mapping[str, Float32Array]

_MOST_SAMPLES = 4
"""Samples on which caches are compared; attentions, one by one, on the longest."""


@dataclass(frozen=True)
class Finer:
    """Names of the caches that stay in 8 bits, and the divergence that all in 4 bits would leave."""

    names: frozenset[str] = frozenset()
    nats: float = 0.0

    def __str__(self) -> str:
        """Say why they do."""
        return f"since all in int4 cost a KL divergence of {self.nats:.2g} nats, more than {MOST_NATS}"


def finer_caches(
    graph: gs.Graph, grids: tuple[Arrays, Arrays], feeds: Sequence[Feed], run: RunOptions, events: Events
) -> Finer:
    """Return which caches of a float model need 8 bits, where others have 4, with scales and offsets.

    The attentions of least divergence have 4 bits, as many as have no more than ``MOST_NATS`` together. None
    is finer in a model that makes no probabilities of tokens, or not the same of a text in two steps.
    """
    by_length = sorted(feeds[:_MOST_SAMPLES], key=_numbers, reverse=True)
    judge = Judge(graph, by_length, replace(run, simulate=True))
    reference = judge.reference
    places = reference.tokens(reference.outputs)
    whole = copy_graph(graph)
    scales, offsets = grids
    quantize_caches(whole, scales, bits=4, offsets=offsets)
    view = CacheView(coded_caches(whole))
    steps = view.in_steps(graph, reference.run, reference.feeds) if places else None
    if steps is None:
        return Finer()

    def _nats(names: Iterable[str], texts: Sequence[int] | None = None) -> float:
        tried = copy_graph(graph)
        quantize_caches(tried, {name: scales[name] for name in names}, bits=4, offsets=offsets)
        return judge.errors_of(tried, steps=steps, places=texts).of_outputs(places).relative

    spent = _nats(scales)
    if spent <= MOST_NATS:
        return Finer(nats=spent)
    groups = _of_nodes(find_caches(graph, 4), scales)
    progress = events.phase("comparing caches", "attention")
    nats = {label: _nats(groups[label], [0]) for label in each_told(groups, progress, len(groups))}
    kept = within(nats, MOST_NATS, spent, lambda labels: _nats(chain(*map(groups.__getitem__, labels))))
    return Finer(frozenset(chain(*(names for label, names in groups.items() if label not in kept))), spent)


def within(
    nats: Mapping[str, float], most: float, spent: float, measure: Callable[[Sequence[str]], float]
) -> list[str]:
    """Return the labels of least divergence that leave ``most`` together, as they are measured together.

    ``nats``: of each label alone; ``spent``: of all together, more than ``most``. Those that are left have
    the share of what they leave together that they have of the sum.
    """
    kept = sorted(nats, key=lambda label: nats[label])
    while kept and not spent <= most:
        bound = most / spent * sum(nats[label] for label in kept)
        sums = accumulate(nats[label] for label in kept)
        kept = [label for label, total in zip(kept[:-1], sums, strict=False) if total <= bound]
        spent = measure(kept) if kept else 0.0
    return kept


def _numbers(feed: Feed) -> int:
    return sum(array.size for array in feed.values())


def _of_nodes(caches: Sequence[Cache], scales: Arrays) -> dict[str, list[str]]:
    """Return the names of the caches of each node."""
    groups: dict[str, list[str]] = {}
    for cache in caches:
        if cache.present.name in scales:
            groups.setdefault(label_of(cache.node), []).append(str(cache.present.name))
    return groups
