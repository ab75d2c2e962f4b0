"""Row: store caches of a decoder in few bits, with scales from the float model on samples."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.features.caches.cache_scales import cache_scales
from transforms.features.caches.caches_in_4_bits import FourBits
from transforms.features.caches.encoder_caches import store_encoder_caches
from transforms.features.caches.finer_caches import Finer
from transforms.features.caches.grown_states import grown_by
from transforms.features.caches.passed_states import PassedState, find_passed
from transforms.files.spelling import as_option, spelled
from transforms.graph.selection import label_of
from transforms.graph.some_names import counted, some_names
from transforms.graph.state_outputs import found_pairs
from transforms.pipelines.work import Work
from transforms.quantize_caches import Cache, find_caches, quantize_caches
from transforms.run.feeds import spread
from transforms.widen_float16 import widen_float16

_MOST_SAMPLES = 16
"""Samples on which scales are measured."""

_STORED = (
    "caches are those of float32 or float16 that a GroupQueryAttention, or a Concat of rank 3 or more, makes "
    "of an input, and nothing else reads that input, and keys and values of an encoder"
)


def store_caches(work: Work) -> None:
    """Store the caches of the quantized graph in few bits.

    Raises ValueError for a model without caches, and for one with growing states that cannot be quantized.
    """
    assert work.data is not None, "asked for before"
    graph, bits = work.graph, int(work.options.kv_cache.removeprefix("int"))
    caches, passed = find_caches(graph, bits), find_passed(graph)
    left = _left(work, caches, passed)
    feeds = spread([feed for _, feed in work.data.feeds(graph)], _MOST_SAMPLES)
    if caches:
        work.record.stored += _store_grown(work, caches, feeds)
    work.record.stored += store_encoder_caches(work, passed, feeds)
    if left:
        states = f"{counted(len(left), 'state')} that no token makes longer: {some_names(left)}"
        work.record.stored.append(f"Left as they are: {states}")


def _store_grown(work: Work, caches: Sequence[Cache], feeds: Sequence[Feed]) -> list[str]:
    """Store the caches that grow with tokens; return the lines that report it."""
    assert work.source is not None, "asked for before"
    graph, name, run = work.graph, work.options.kv_cache, work.options.run
    axes = {str(cache.present.name): cache.channels for cache in caches}
    sizes = {
        str(cache.present.name): math.prod(cache.past.shape[i] for i in cache.channels) for cache in caches
    }
    before = sum(sizes[str(cache.present.name)] * cache.past.dtype.itemsize for cache in caches)
    finer, after = Finer(frozenset(axes)), 0
    if name == "int4":
        fine = FourBits.of(_float_graph(work), feeds, run, work.events)
        finer = fine.finer
        if len(finer.names) == len(caches):
            way = spelled("{kv_cache:int8} has more bits")
            raise ValueError(
                f"{as_option('kv_cache', name)}: the caches of every attention stay in int8, {finer}: {way}"
            )
        after = fine.store(graph)
    if rest := {cache: axes[cache] for cache in sorted(finer.names)}:
        quantize_caches(graph, cache_scales(work.source.open(run), rest, feeds))
        after += sum(sizes[cache] for cache in rest)
    count = len(caches) - len(rest) if name == "int4" else len(caches)
    lines = [
        f"Stored in {name}: {counted(count, 'cache')}, {after:,} bytes a token instead of {before:,}, "
        f"scales of {counted(len(feeds), 'sample')}"
    ]
    if name == "int4" and rest:
        lines.append(f"Stored in int8: {counted(len(rest), 'cache')}, {finer}")
    return lines


def _left(work: Work, caches: Sequence[Cache], passed: Sequence[PassedState]) -> list[str]:
    """Return the names of states that stay in float.

    Raises ValueError for one that grows, and for a model with nothing to store.
    """
    graph, name = work.graph, work.options.kv_cache
    pairs, stored = found_pairs(graph), {str(cache.present.name) for cache in caches}
    stored |= {state.name for state in passed}
    names = {*pairs.values()} - stored
    unstored = [tensor for tensor in graph.outputs if tensor.name in names]
    fed = [tensor for tensor in graph.inputs if tensor.name in pairs] + [cache.past for cache in caches]
    grown = [(str(tensor.name), node) for tensor in unstored if (node := grown_by(tensor, fed))]
    left = [str(tensor.name) for tensor in unstored]
    if grown or not stored:
        reason = f"no token makes {some_names(left)} longer" if left else "there is no cache"
        for output, node in grown[:1]:
            reason = f"'{output}' of {node.op} '{label_of(node)}' cannot be stored so"
        reason = _quantized(work, stored) or reason
        raise ValueError(f"{as_option('kv_cache', name)}: {reason}: {_STORED}")
    return left


def _quantized(work: Work, stored: Container[str]) -> str:
    """Return a message on the cache of the float model that the scheme has quantized, empty if none."""
    caches = find_caches(_float_graph(work), int(work.options.kv_cache.removeprefix("int")))
    lost = [cache for cache in caches if cache.present.name not in stored]
    if not lost:
        return ""
    name, op = lost[0].present.name, lost[0].node.op
    way = as_option("exclude_op_types", op)
    return f"the scheme quantizes what '{name}' is made of, unless with {way}"


def _float_graph(work: Work) -> gs.Graph:
    """Return the original float model in float32."""
    assert work.source is not None, "asked for before"
    graph = work.source.load()
    widen_float16(graph)
    return graph
