"""Whether a model that was just quantized uses all codes of int8: its outputs on samples decide."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import partial

import onnx_graphsurgeon as gs

from transforms.all_codes.recorded_shifts import recorded_shifts
from transforms.all_codes.use_all_codes import count_added, use_all_codes
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.measure_outputs import drags, falls, gain
from transforms.choose_ranges.score_model import score_model
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import RunOptions

MOST_SAMPLES, MOST_LARGE = 4, 1
"""Samples that the outputs are compared on, the first ones; of large ones, one shows whether much is lost."""

_EXPECTED, _SPREAD = 1.0, 1.5
"""dB that models gain, and how much that differs."""

_LEAST = 0.1  # dB that have to be expected


@dataclass(frozen=True)
class SettledCodes:
    """How many tensors were shifted, and how many Pads and Subs were added for it.

    ``steps``: the new scale of each by its name in the float model. ``refused``: how many tensors stayed,
    for the outputs gain nothing.
    """

    count: int = 0
    added: int = 0
    steps: dict[str, float] = field(default_factory=dict)
    refused: int = 0


def settle_codes(
    graph: gs.Graph,
    floats: FloatRuns,
    count: int,
    inputs: Container[str] = (),
    *,
    padded: bool = False,
    tops: Mapping[str, float] | None = None,
    run: RunOptions | None = None,
) -> SettledCodes:
    """Let tensors of a quantized graph use all codes, in place, if its outputs on samples are better for it.

    ``floats``: runs of the float model as it was quantized, of which the first ``count`` samples are taken.
    ``inputs`` are never negative. ``padded``: whether nodes may be added; ``tops``: upper ends of ranges, as
    of :func:`transforms.all_codes.use_all_codes.use_all_codes`.
    """
    shifted, use = copy_graph(graph), partial(use_all_codes, inputs=inputs, padded=padded, tops=tops)
    tensors = len(use(shifted))
    if not tensors or not _is_better(shifted, graph, floats, count, run):
        return SettledCodes(refused=tensors)
    before = count_added(graph)
    use(graph)
    steps = {name: shift / 128 for name, shift in recorded_shifts(graph).items()}
    return SettledCodes(tensors, count_added(graph) - before, steps)


def _is_better(new: gs.Graph, old: gs.Graph, floats: FloatRuns, count: int, run: RunOptions | None) -> bool:
    """Return whether a gain is to be expected, from samples and other models, and no output loses much.

    ``new`` may not be used afterwards. An output that is saturated counts as it is before that, too.
    """
    samples = floats.samples(count)
    if not floats.outputs:
        return False
    scores = score_model(new, floats, samples, run), score_model(copy_graph(old), floats, samples, run)
    worth = gain(*scores).shrunk(_EXPECTED, _SPREAD)
    return worth > _LEAST and not drags(*scores) and not falls(*scores)
