"""Whether a model that was just quantized uses all codes of int8: its outputs on samples decide.

Tensors with negative numbers are shifted, too (:mod:`transforms.all_codes.shift_spans`), unless outputs are
better with those alone that are never negative.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx_graphsurgeon as gs

from transforms.all_codes.recorded_shifts import recorded_shifts, shifts_within
from transforms.all_codes.shift_spans import shift_spans
from transforms.all_codes.use_all_codes import count_added, use_all_codes
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.measure_outputs import Score, drags, falls, gain
from transforms.choose_ranges.score_model import score_model
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import RunOptions

MOST_SAMPLES, MOST_LARGE = 4, 1
"""Samples that the outputs are compared on, the first ones; of large ones, one shows whether much is lost."""

_EXPECTED, _SPREAD = 1.0, 1.5
"""dB that models gain, and how much that differs."""

_LEAST = 0.1  # dB that have to be expected
_DRAGGED = 2.0  # dB that the worst output may lose: four samples of one say little


@dataclass(frozen=True)
class SettledCodes:
    """How many tensors were shifted, and how many Pads, Adds and Subs were added for it.

    ``signed``: how many of them hold negative numbers, or come from other than one layer. ``steps``: the new
    scale of each by its name in the float model. ``refused``: how many tensors stayed, for the outputs gain
    nothing.
    """

    count: int = 0
    signed: int = 0
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
    added: bool = False,
    tops: Mapping[str, float] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    run: RunOptions | None = None,
) -> SettledCodes:
    """Let tensors of a quantized graph use all codes, in place, if its outputs on samples are better for it.

    ``floats``: runs of the float model as it was quantized, of which the first ``count`` samples are taken.
    ``inputs`` are never negative. ``padded``, ``added``: whether Pads, and Adds and Subs, may be added;
    ``tops``: upper ends of ranges, as of :func:`transforms.all_codes.use_all_codes.use_all_codes`;
    ``ranges``: with a zero point, as of :func:`transforms.all_codes.shift_spans.shift_spans`, without which
    no others are shifted.
    """
    before = count_added(graph)

    def _shift(changed: gs.Graph, ends: Mapping[str, tuple[float, float]]) -> SettledCodes:
        tensors = len(use_all_codes(changed, inputs=inputs, padded=padded, tops=tops))
        steps = {name: shift / 128 for name, shift in recorded_shifts(changed).items()}
        found = shift_spans(changed, ends, padded=padded, added=added) if ends else []
        steps |= {name: one.step for one in found for name in one.names}
        return SettledCodes(tensors + len(found), len(found), count_added(changed) - before, steps)

    judge, refused = _Judge(graph, floats, count, run), 0
    for ends in (ranges or {}, {}):
        shifted = copy_graph(graph)
        done = _shift(shifted, ends)
        if done.count and judge.is_better(shifted):
            return _shift(graph, ends)
        refused = max(refused, done.count)
        if not done.signed:
            break  # the other way is the same
    return SettledCodes(refused=refused)


class _Judge:
    """What a quantized graph makes of samples, and whether changed copies of it are better."""

    def __init__(self, graph: gs.Graph, floats: FloatRuns, count: int, run: RunOptions | None) -> None:
        self._graph, self._floats, self._count, self._run = graph, floats, count, run

    def is_better(self, graph: gs.Graph) -> bool:
        """Return whether a gain is to be expected, from samples and other models, and no output loses much.

        The graph may not be used afterwards. An output that is saturated counts as it is before that, too.
        """
        if not self._floats.outputs:
            return False
        scores = self._score(graph), self._before
        worth = gain(*scores).shrunk(_EXPECTED, _SPREAD)
        return worth > _LEAST and not drags(*scores, _DRAGGED) and not falls(*scores)

    @cached_property
    def _before(self) -> Score:
        return self._score(copy_graph(self._graph))

    def _score(self, graph: gs.Graph) -> Score:
        shifts, samples = shifts_within(graph), self._floats.samples(self._count)
        return score_model(graph, self._floats, samples, self._run, shifts)
