"""Attentions whose caches stay in 8 bits beside others in 4, by the divergence that each alone leaves.

Divergences of attentions add up within a tenth, so that each is measured once, in the float model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float32Array
from transforms.graph.selection import label_of
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.quantize_caches import Cache, find_caches, quantize_caches
from transforms.run.coded_caches import coded_caches
from transforms.run.events import Events, each_told
from transforms.run.two_steps import TwoSteps
from transforms.runtime.session import RunOptions

MOST_NATS = 0.015
"""The divergence that caches in 4 bits may leave on the samples; texts that chose nothing, twice as
long, have 0.029 with weights in int8, 42 of the 60 caches of SmolLM2-135M in 4 bits."""

Arrays = Mapping[str, Float32Array]

_MOST_SAMPLES = 4
"""Samples on which attentions are compared."""


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
    judge = Judge(graph, feeds[:_MOST_SAMPLES], replace(run, simulate=True))
    reference = judge.reference
    places = reference.tokens(reference.outputs)
    whole = copy_graph(graph)
    scales, offsets = grids
    quantize_caches(whole, scales, bits=4, offsets=offsets)
    steps = TwoSteps.agreeing(graph, coded_caches(whole), reference.run, reference.feeds) if places else None
    if steps is None:
        return Finer()
    groups = _of_nodes(find_caches(graph, 4), scales)
    nats: dict[str, float] = {}
    progress = events.phase("comparing caches", "attention")
    for label, names in each_told(groups.items(), progress, len(groups)):
        tried = copy_graph(graph)
        quantize_caches(tried, {name: scales[name] for name in names}, bits=4, offsets=offsets)
        nats[label] = judge.errors_of(tried, steps=steps).of_outputs(places).relative
    return beyond(nats, groups)


def beyond(nats: Mapping[str, float], groups: Mapping[str, Sequence[str]]) -> Finer:
    """Return the caches of the nodes with which the sum of the smaller divergences is too large."""
    names, spent = list[str](), 0.0
    for label in sorted(nats, key=lambda one: nats[one]):
        spent += nats[label]
        names += groups[label] if spent > MOST_NATS else ()
    return Finer(frozenset(names), spent)


def _of_nodes(caches: Sequence[Cache], scales: Arrays) -> dict[str, list[str]]:
    """Return the names of the caches of each node."""
    groups: dict[str, list[str]] = {}
    for cache in caches:
        if cache.present.name in scales:
            groups.setdefault(label_of(cache.node), []).append(str(cache.present.name))
    return groups
