"""Keys and values of an encoder in int8, with scales from the float model on samples."""

from __future__ import annotations

from collections.abc import Sequence

from ops.array_types import Feed
from transforms.features.caches.cache_scales import cache_scales
from transforms.features.caches.passed_states import PassedState
from transforms.graph.some_names import counted, some_names
from transforms.pipelines.work import Work
from transforms.quantize_caches import quantize_caches


def store_encoder_caches(work: Work, passed: Sequence[PassedState], feeds: Sequence[Feed]) -> list[str]:
    """Store keys and values of an encoder in int8; return lines on them."""
    assert work.source is not None, "asked for before"
    if not passed:
        return []
    axes = {one.name: one.channels for one in passed}
    fed = {one.name: str(one.past.name) for one in passed}
    scales = cache_scales(work.source.open(work.options.run), axes, feeds, fed=fed)
    others = [str(one.past.name) for one in passed if not one.is_made_here]
    quantize_caches(work.graph, scales)
    lines = [f"Stored in int8: {counted(len(passed), 'cache')} of an encoder"]
    if others:
        how = "feed its numbers divided by the scale of their DequantizeLinear, rounded"
        lines.append(f"Computed by another model: {some_names(others)}: {how}")
    return lines
