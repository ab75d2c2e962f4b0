"""Caches of a decoder in few bits, as ``--kv-cache`` asks for."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

import onnx_graphsurgeon as gs

from tools.cli.data_options import open_samples
from tools.cli.said import say
from tools.jobs.quantize_options import QuantizeJob
from transforms import model_io
from transforms.calibrate.cache_scales import cache_scales
from transforms.graph.grown_states import grown_by
from transforms.graph.selection import label_of
from transforms.graph.some_names import counted, some_names
from transforms.graph.state_outputs import found_pairs
from transforms.quantize_caches import Cache, find_caches, quantize_caches
from transforms.run.feeds import spread
from transforms.run.run_model import open_model
from transforms.widen_float16 import widen_float16

_MOST_SAMPLES = 16
"""Samples that scales are measured on."""

_STORED = (
    "caches are those of float32 or float16 that a GroupQueryAttention, or a Concat of rank 3 or more, makes "
    "of an input, and nothing else reads that input"
)


def store_caches(graph: gs.Graph, job: QuantizeJob) -> None:
    """Store the caches of a quantized model in few bits, with scales from the float model, and say so.

    Raises ValueError for a model without caches, or with others that grow and cannot be quantized so.
    """
    bits = int(job.kv_cache.removeprefix("int"))
    caches = find_caches(graph, bits)
    left = _left(graph, caches, job)
    axes = {str(one.present.name): one.channels for one in caches}
    feeds = spread([feed for _, feed in open_samples(job, graph)], _MOST_SAMPLES)
    scales = cache_scales(open_model(Path(job.input), job.run), axes, feeds, bits=bits)
    before = sum(scales[str(one.present.name)].size * one.past.dtype.itemsize for one in caches)
    count, numbers = quantize_caches(graph, scales, bits=bits), sum(one.size for one in scales.values())
    say(
        f"Stored in {job.kv_cache}: {counted(count, 'cache')}, "
        f"{numbers * bits // 8:,} bytes a token instead of {before:,}, "
        f"scales of {counted(len(feeds), 'sample')}"
    )
    if left:
        say(f"Left as they are: {counted(len(left), 'state')} that no token makes longer: {some_names(left)}")


def _left(graph: gs.Graph, caches: Sequence[Cache], job: QuantizeJob) -> list[str]:
    """Return the names of states that stay as they are.

    Raises ValueError for one that grows, and for a model without caches that can be stored.
    """
    pairs, stored = found_pairs(graph), {str(one.present.name) for one in caches}
    names = {*pairs.values()} - stored
    others = [one for one in graph.outputs if one.name in names]
    fed = [one for one in graph.inputs if one.name in pairs] + [one.past for one in caches]
    grown = [(str(one.name), node) for one in others if (node := grown_by(one, fed))]
    left = [str(one.name) for one in others]
    if grown or not caches:
        reason = f"no token makes {some_names(left)} longer" if left else "there is no cache"
        for name, node in grown[:1]:
            reason = f"'{name}' of {node.op} '{label_of(node)}' cannot be stored so"
        raise _refused(job, _quantized(job, stored) or reason)
    return left


def _quantized(job: QuantizeJob, stored: Container[str]) -> str:
    """Return which cache of the float model the scheme has quantized, empty if none."""
    graph = model_io.load(job.input)
    widen_float16(graph)
    caches = find_caches(graph, int(job.kv_cache.removeprefix("int")))
    lost = [one for one in caches if one.present.name not in stored]
    if not lost:
        return ""
    name, op = lost[0].present.name, lost[0].node.op
    return f"the scheme quantizes what '{name}' is made of, unless with --exclude-op {op}"


def _refused(job: QuantizeJob, reason: str) -> ValueError:
    return ValueError(f"--kv-cache {job.kv_cache}: {reason}: {_STORED}")
