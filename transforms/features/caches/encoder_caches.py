"""Store keys and values of an encoder in int8, with scales from the float model on samples."""

from __future__ import annotations

from collections.abc import Sequence

from ops.array_types import Feed
from transforms.features.caches.cache_scales import cache_scales
from transforms.features.caches.passed_states import PassedState
from transforms.graph.some_names import counted, some_names
from transforms.pipelines.work import Work
from transforms.quantize_caches import quantize_caches


def store_encoder_caches(work: Work, passed: Sequence[PassedState], feeds: Sequence[Feed]) -> list[str]:
    """Store keys and values of an encoder in int8; return the lines that report it."""
    assert work.source is not None, "asked for before"
    if not passed:
        return []
    axes = {state.name: state.channels for state in passed}
    fed = {state.name: str(state.past.name) for state in passed}
    scales = cache_scales(work.source.open(work.options.run), axes, feeds, fed=fed)
    from_other_model = [str(state.past.name) for state in passed if not state.is_made_here]
    quantize_caches(work.graph, scales)
    lines = [f"Stored in int8: {counted(len(passed), 'cache')} of an encoder"]
    if from_other_model:
        how = "feed its numbers divided by the scale of their DequantizeLinear, rounded"
        lines.append(f"Computed by another model: {some_names(from_other_model)}: {how}")
    return lines
