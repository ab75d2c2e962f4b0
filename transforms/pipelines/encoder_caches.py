"""Keys and values that a decoder takes from an encoder in int8, with scales from the float model on samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.cache_scales import cache_scales
from transforms.files.spelling import as_option
from transforms.graph.passed_states import PassedState, taken_alone, unpaired_passed
from transforms.graph.some_names import counted, some_names
from transforms.pipelines.work import Work
from transforms.quantize_caches import quantize_caches


def store_encoder_caches(work: Work, passed: Sequence[PassedState], feeds: Sequence[Feed]) -> list[str]:
    """Store keys and values of an encoder in int8; return lines on them."""
    assert work.source is not None, "asked for before"
    if not passed:
        return []
    axes = {str(one.present.name): one.channels for one in passed}
    fed = {str(one.present.name): str(one.past.name) for one in passed}
    scales = cache_scales(work.source.open(work.options.run), axes, feeds, fed=fed)
    quantize_caches(work.graph, scales)
    return [f"Stored in int8: {counted(len(passed), 'cache')} that an encoder fills"]


def left_to_others(work: Work, stored: Collection[gs.Variable]) -> list[str]:
    """Return a line on inputs like some that are stored, which other models fill.

    Raises ValueError for one that several outputs hand out.
    """
    name = as_option("kv_cache", work.options.kv_cache)
    if unsure := unpaired_passed(work.graph):
        raise ValueError(f"{name}: input '{unsure[0]}' is handed out, but no output is known to be its own")
    alone = taken_alone(work.graph, stored)
    if not alone:
        return []
    inputs = counted(len(alone), "input")
    return [
        f"Left as they are: {inputs} that another model fills and no output hands out: {some_names(alone)}"
    ]
