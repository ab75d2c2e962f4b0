"""Whether a model that was just quantized uses all codes of int8: its outputs on samples decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.all_codes.recorded_shifts import recorded_shifts
from transforms.all_codes.use_all_codes import use_all_codes
from transforms.choose_ranges.measure_outputs import Score, drags, energies, falls, gain, signals
from transforms.choose_ranges.output_views import before_saturation
from transforms.model.copy_graph import copy_graph
from transforms.run.run_each import run_each, with_bounded_memory, with_fixed_threads
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.search.output_metrics import is_float_array

MOST_SAMPLES = 8
"""Samples that the outputs are compared on, the first ones."""

ROOMS = (8 / 7, 1.0)
"""Times the range of a tensor, the first that outputs are better with. A range of least squared error grows
by about an eighth with a bit (Laplace)."""

_ADDED = ("Pad", "Sub")


@dataclass(frozen=True)
class SettledCodes:
    """How many tensors were shifted, and how many Pads and Subs were added for it.

    ``steps``: the new scale of each by its name in the float model. ``refused``: how many tensors stayed
    because the outputs are no better.
    """

    count: int = 0
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
    run: RunOptions | None = None,
) -> SettledCodes:
    """Let tensors of a quantized graph use all codes, in place, if its outputs on samples are better for it.

    ``float_graph`` is the float model as it was quantized, ``inputs`` are never negative; with ``padded``,
    nodes may be added (:func:`transforms.all_codes.use_all_codes.use_all_codes`).
    """
    shifted = copy_graph(graph)
    count = len(use_all_codes(shifted, inputs=inputs, padded=padded, room=ROOMS[0]))
    if not count:
        return SettledCodes()
    judge, before = _Judge(float_graph, graph, feeds, run), _count(graph)
    for room in ROOMS:
        shifted = copy_graph(graph)
        use_all_codes(shifted, inputs=inputs, padded=padded, room=room)
        if judge.prefers(shifted):
            use_all_codes(graph, inputs=inputs, padded=padded, room=room)
            steps = {name: shift / 128 for name, shift in recorded_shifts(graph).items()}
            return SettledCodes(count, _count(graph) - before, steps)
    return SettledCodes(refused=count)


def _count(graph: gs.Graph) -> int:
    return sum(node.op in _ADDED for node in graph.nodes)


class _Judge:
    """Compares the outputs of variants of a quantized model with its own and those of the float model."""

    def __init__(
        self, float_graph: gs.Graph, graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions | None
    ) -> None:
        """Run both models; an output that is saturated counts as it is before that, too."""
        self._feeds, self._run, self._views = feeds, run, list(before_saturation(float_graph))
        found = self._outputs(float_graph)
        floats = [name for name, array in found[0].items() if is_float_array(array)]
        ends = {tensor.name for tensor in float_graph.outputs}
        self._names = sorted(floats, key=lambda name: name not in ends)
        self._count = sum(name in ends for name in floats)
        self._expected = [{name: one[name] for name in self._names} for one in found]
        self._signal = np.array([signals(one) for one in self._expected])
        self._score = self._scored(graph)

    def prefers(self, graph: gs.Graph) -> bool:
        """Return whether a variant gains in the mean and loses much in no output."""
        scores = self._scored(graph), self._score
        gains = bool(self._count) and gain(*scores).decibels > 0
        return gains and not drags(*scores) and not falls(*scores)

    def _scored(self, graph: gs.Graph) -> Score:
        pairs = zip(self._expected, self._outputs(graph), strict=True)
        return Score(np.array([energies(*pair) for pair in pairs]), self._signal, self._count)

    def _outputs(self, graph: gs.Graph) -> list[Feed]:
        options = with_bounded_memory(with_fixed_threads(self._run), self._feeds)
        options = dataclasses.replace(options, simulate=True, prepack=False)
        model = open_model(_showing(graph, self._views), options)
        return list(run_each(model.run, self._feeds, self._run))


def _showing(graph: gs.Graph, views: Collection[str]) -> gs.Graph:
    """Return a copy of a graph with more tensors as outputs."""
    copy = copy_graph(graph)
    known = {tensor.name for tensor in copy.outputs}
    made = {tensor.name: tensor for node in copy.nodes for tensor in node.outputs}
    copy.outputs += [made[name] for name in views if name not in known]
    return copy
