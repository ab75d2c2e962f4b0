"""Whether a model that was just quantized uses all codes of int8: its outputs on samples decide.

Tensors with negative numbers are shifted, too (:mod:`transforms.all_codes.shift_spans`), unless outputs are
better with those alone that are never negative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.all_codes.recorded_shifts import recorded_shifts, shifts_within
from transforms.all_codes.shift_spans import shift_spans
from transforms.all_codes.use_all_codes import count_added, use_all_codes
from transforms.choose_ranges.measure_outputs import Score, drags, energies, falls, gain, signals
from transforms.choose_ranges.output_views import before_saturation, show
from transforms.model.copy_graph import copy_graph
from transforms.run.run_each import run_each, with_bounded_memory, with_fixed_threads
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.search.output_metrics import is_float_array

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
    float_graph: gs.Graph,
    feeds: Sequence[Feed],
    inputs: Container[str] = (),
    *,
    padded: bool = False,
    tops: Mapping[str, float] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    run: RunOptions | None = None,
) -> SettledCodes:
    """Let tensors of a quantized graph use all codes, in place, if its outputs on samples are better for it.

    ``float_graph`` is the float model as it was quantized, ``inputs`` are never negative. ``padded``: whether
    nodes may be added; ``tops``: upper ends of ranges, as of
    :func:`transforms.all_codes.use_all_codes.use_all_codes`; ``ranges``: with a zero point, as of
    :func:`transforms.all_codes.shift_spans.shift_spans`, without which no others are shifted.
    """
    before = count_added(graph)

    def _shift(changed: gs.Graph, ends: Mapping[str, tuple[float, float]]) -> SettledCodes:
        count = len(use_all_codes(changed, inputs=inputs, padded=padded, tops=tops))
        steps = {name: shift / 128 for name, shift in recorded_shifts(changed).items()}
        found = shift_spans(changed, ends) if ends and padded else []
        steps |= {name: one.step for one in found for name in one.names}
        return SettledCodes(count + len(found), len(found), count_added(changed) - before, steps)

    judge, refused = _Judge(float_graph, graph, feeds, run), 0
    for ends in (ranges or {}, {}):
        shifted = copy_graph(graph)
        done = _shift(shifted, ends)
        if done.count and (done.signed or not ends) and judge.is_better(shifted):
            return _shift(graph, ends)
        refused = max(refused, done.count)
    return SettledCodes(refused=refused)


class _Judge:
    """What the float model makes of samples, and how far from that a quantized graph is."""

    def __init__(
        self, float_graph: gs.Graph, graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions | None
    ) -> None:
        self._float_graph, self._graph, self._feeds, self._run = float_graph, graph, feeds, run
        self._views = list(before_saturation(float_graph))

    def is_better(self, graph: gs.Graph) -> bool:
        """Return whether a gain is to be expected, from samples and other models, and no output loses much.

        The graph may not be used afterwards. An output that is saturated counts as it is before that, too.
        """
        if not self._count:
            return False
        scores = self._score(graph), self._first
        worth = gain(*scores).shrunk(_EXPECTED, _SPREAD)
        return worth > _LEAST and not drags(*scores, _DRAGGED) and not falls(*scores)

    @cached_property
    def _wanted(self) -> list[Feed]:
        """What is compared: outputs first, then what they saturate."""
        expected = _outputs(copy_graph(self._float_graph), self._views, self._feeds, self._run)
        floats = [name for name, array in expected[0].items() if is_float_array(array)]
        names = sorted(floats, key=lambda name: name not in self._ends)
        return [{name: one[name] for name in names} for one in expected]

    @cached_property
    def _ends(self) -> set[str]:
        return {str(tensor.name) for tensor in self._float_graph.outputs}

    @cached_property
    def _count(self) -> int:
        return sum(name in self._ends for name in self._wanted[0])

    @cached_property
    def _first(self) -> Score:
        return self._score(copy_graph(self._graph))

    def _score(self, graph: gs.Graph) -> Score:
        made = _outputs(graph, self._views, self._feeds, self._run)
        errors = [energies(*pair) for pair in zip(self._wanted, made, strict=True)]
        return Score(np.array(errors), np.array([signals(one) for one in self._wanted]), self._count)


def _outputs(
    graph: gs.Graph, views: Collection[str], feeds: Sequence[Feed], run: RunOptions | None
) -> list[Feed]:
    """Return outputs and views of a graph, which may not be used afterwards, on each sample.

    Of views that hold shifted numbers, the shift is taken back.
    """
    show(graph, views)
    shifts = {name: np.float32(shift) for name, shift in shifts_within(graph).items() if name in views}
    options = with_bounded_memory(with_fixed_threads(run), feeds)
    options = dataclasses.replace(options, simulate=True, prepack=False)
    made = list(run_each(open_model(graph, options).run, feeds, run))
    return [one | {name: one[name] + shift for name, shift in shifts.items()} for one in made]
