"""A move: tensors of int8 use all quantization levels, shifted so that zero is at the lowest.

It is decided last, on the written model: with and without shifts it has the same ranges otherwise, so that
samples may judge that have given them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.formats import FORMATS
from transforms.all_codes.recorded_shifts import recorded_shifts, shifts_within
from transforms.all_codes.shift_spans import shift_spans
from transforms.all_codes.use_all_codes import count_added, use_all_codes
from transforms.calibrate.calibration import Calibration
from transforms.graph import dtypes
from transforms.graph.some_names import counted
from transforms.judge.errors import gain
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.moves.record import Record, Tried
from transforms.plan.tensor_grids import TensorGrid
from transforms.scheme import Scheme
from transforms.scheme.scheme_values import ADDED, FREE, OFF

_INT8 = "int8"
_ROOM = 8 / 7
"""Times the range with a zero point at its end: finer steps leave room for numbers of new data."""


@dataclass(frozen=True)
class Shifted:
    """The tensors that were shifted: ``count`` of them, ``signed`` with negative numbers, ``added`` nodes.

    ``steps``: the new scale of each by its name in the float model.
    """

    count: int = 0
    signed: int = 0
    added: int = 0
    steps: Mapping[str, float] = field(default_factory=dict)


def may_use_full_range(scheme: Scheme) -> bool:
    """Return whether a scheme lets tensors of int8 be shifted: not where sums of weights are integers."""
    return scheme.all_codes != OFF and scheme.activation == _INT8 and not scheme.keep_weight_nodes


def use_full_range(graph: gs.Graph, scheme: Scheme, statistics: Calibration, *, signed: bool) -> Shifted:
    """Shift tensors of a written graph, in place; ``signed``: also those with negative numbers."""
    extremes = statistics.extremes()
    padded, before = scheme.all_codes != FREE, count_added(graph)
    inputs = {
        str(tensor.name)
        for tensor in graph.inputs
        if padded and dtypes.is_type(tensor, dtypes.FLOAT) and extremes.get(tensor.name, (-1.0,))[0] >= 0
    }
    ends = _ranges(graph, statistics) if signed else {}
    count = len(use_all_codes(graph, inputs=inputs, padded=padded, tops=_tops(graph, statistics)))
    steps = {name: shift / 128 for name, shift in recorded_shifts(graph).items()}
    spans = shift_spans(graph, ends, padded=padded, added=scheme.all_codes == ADDED) if ends else []
    steps |= {name: span.step for span in spans for name in span.names}
    return Shifted(count + len(spans), len(spans), count_added(graph) - before, steps)


def try_full_range(
    graph: gs.Graph, scheme: Scheme, statistics: Calibration, judge: Judge, record: Record
) -> Shifted:
    """Shift tensors of a written graph, in place, if the judge accepts it: all of them, or unsigned ones."""
    before = None
    for signed in (True, False):
        copy = copy_graph(graph)
        found = use_full_range(copy, scheme, statistics, signed=signed)
        if not found.count or (signed and not found.signed):
            continue
        before = before or judge.errors_of(copy_graph(graph), judge.count)
        won = gain(judge.errors_of(copy, shifts=shifts_within(copy)), before)
        record.tried.append(Tried("full range", words(found), won, won.is_accepted()))
        if won.is_accepted():
            return use_full_range(graph, scheme, statistics, signed=signed)
    return Shifted()


def words(found: Shifted) -> str:
    """Return what was shifted in words."""
    tensors = counted(found.count, "tensor")
    return tensors if found.signed else f"{tensors} without negative numbers"


def shifted_grids(grids: list[TensorGrid] | None, found: Shifted) -> None:
    """Give the grids of shifted tensors, in place, their scales; their lowest level stands for zero."""
    for number, grid in enumerate(grids or ()):
        if grid.name in found.steps and grid.format == _INT8 and grids is not None:
            scale, zero = np.float32(found.steps[grid.name]), np.zeros_like(grid.zero_point)
            grids[number] = replace(grid, scale=np.full_like(grid.scale, scale), zero_point=zero)


def _tops(graph: gs.Graph, statistics: Calibration) -> dict[str, float]:
    """Return the upper ends of ranges with a zero point of tensors that are quantized and never negative."""
    quantized = {node.inputs[0].name for node in graph.nodes if node.op == "QuantizeLinear"}
    names = [name for name, (low, _) in statistics.extremes().items() if low >= 0 and name in quantized]
    return {name: _ROOM * statistics.range(name, FORMATS[_INT8], symmetric=False)[1] for name in names}


def _ranges(graph: gs.Graph, statistics: Calibration) -> dict[str, tuple[float, float]]:
    """Return ranges with a zero point of tensors that are quantized.

    The end nearer to zero is wider by what it differs between folds of the samples: a scale without a zero
    point leaves it room, and new data use that.
    """
    quantized = {node.inputs[0].name for node in graph.nodes if node.op == "QuantizeLinear"}
    found: dict[str, tuple[float, float]] = {}
    for name in sorted(statistics.extremes().keys() & quantized):
        ends = statistics.range(name, FORMATS[_INT8], symmetric=False)
        low, high = min(ends[0], 0.0), max(ends[1], 0.0)
        below, above = statistics.differences(name)
        found[name] = max(low * below, min(low, -high)), min(high * above, max(high, -low))
    return found
