"""Choose the attentions whose caches stay in 8 bits while others have 4, by the divergence of outputs.

First all caches are measured in 4 bits. Where that is too much, each attention is measured alone, on one
text, in the float model: divergences of attentions add up within a tenth. Those chosen for 4 bits are then
measured together.
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
"""Limit in nats of the divergence that caches in 4 bits may cause on the samples. Unseen texts, twice as
long, have 0.029 with weights in int8 and 42 of the 60 caches of SmolLM2-135M in 4 bits."""

Arrays = Mapping[str, Float32Array]

_MOST_SAMPLES = 4
"""Samples on which caches are compared; single attentions are compared on the longest one."""


@dataclass(frozen=True)
class Finer:
    """Names of the caches that stay in 8 bits, and the divergence with all caches in 4 bits."""

    names: frozenset[str] = frozenset()
    nats: float = 0.0

    def __str__(self) -> str:
        """Return the reason in words."""
        return f"since all in int4 cost a KL divergence of {self.nats:.2g} nats, more than {MOST_NATS}"


def finer_caches(
    graph: gs.Graph, grids: tuple[Arrays, Arrays], feeds: Sequence[Feed], run: RunOptions, events: Events
) -> Finer:
    """Return the caches of a float model that need 8 bits where others have 4, given scales and offsets.

    As many attentions get 4 bits, those of least divergence first, as stay below ``MOST_NATS`` together. No
    cache is finer if the model has no token probabilities, or if a text in two steps gives other outputs.
    """
    by_length = sorted(feeds[:_MOST_SAMPLES], key=_numbers, reverse=True)
    judge = Judge(graph, by_length, replace(run, simulate=True))
    reference = judge.reference
    places = reference.tokens(reference.outputs)
    quantized = copy_graph(graph)
    scales, offsets = grids
    quantize_caches(quantized, scales, bits=4, offsets=offsets)
    view = CacheView(coded_caches(quantized))
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
    labels_in_4_bits = within(
        nats, MOST_NATS, spent, lambda labels: _nats(chain(*map(groups.__getitem__, labels)))
    )
    return Finer(
        frozenset(chain(*(names for label, names in groups.items() if label not in labels_in_4_bits))), spent
    )


def within(
    nats: Mapping[str, float], most: float, spent: float, measure: Callable[[Sequence[str]], float]
) -> list[str]:
    """Return the labels of least divergence that together, as measured, stay within ``most``.

    ``nats``: of each label alone; ``spent``: of all together, more than ``most``. The labels that remain are
    assumed to keep their share of the sum.
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
    """Return the names of the caches of each attention node."""
    groups: dict[str, list[str]] = {}
    for cache in caches:
        if cache.present.name in scales:
            groups.setdefault(label_of(cache.node), []).append(str(cache.present.name))
    return groups
