"""Caches of a decoder in few bits, as ``--kv-cache`` asks for."""

from __future__ import annotations

from pathlib import Path

import onnx_graphsurgeon as gs

from tools.cli.data_options import open_samples
from tools.cli.said import say
from tools.jobs.quantize_options import QuantizeJob
from transforms.calibrate.cache_scales import cache_scales
from transforms.graph.some_names import counted, some_names
from transforms.graph.state_outputs import found_pairs
from transforms.quantize_caches import find_caches, quantize_caches
from transforms.run.feeds import spread
from transforms.run.run_model import open_model

_MOST_SAMPLES = 16
"""Samples that scales are measured on."""


def store_caches(graph: gs.Graph, job: QuantizeJob) -> None:
    """Store the caches of a quantized model in few bits, with scales from the float model, and say so.

    Raises ValueError for a model without caches, or with others than can be quantized so.
    """
    bits = int(job.kv_cache.removeprefix("int"))
    names = [str(one.present.name) for one in find_caches(graph, bits)]
    others = [name for name in found_pairs(graph).values() if name not in names]
    if not names or others:
        reason = f"{some_names(others)} cannot be" if others else "there is no cache of float32"
        raise ValueError(
            f"--kv-cache {job.kv_cache}: {reason}: caches come from a GroupQueryAttention, or a Concat of "
            "rank 4, and an input"
        )
    feeds = spread([feed for _, feed in open_samples(job, graph)], _MOST_SAMPLES)
    scales = cache_scales(open_model(Path(job.input), job.run), names, feeds, bits=bits)
    count, channels = quantize_caches(graph, scales, bits=bits), sum(one.size for one in scales.values())
    say(
        f"Stored in {job.kv_cache} after outputs were compared: {counted(count, 'cache')}, "
        f"{channels * bits // 8:,} bytes a token instead of {channels * 4:,}, "
        f"scales of {counted(len(feeds), 'sample')}"
    )
