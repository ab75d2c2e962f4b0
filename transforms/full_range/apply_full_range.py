"""The key ``full_range`` of a scheme: which tensors of a quantized graph are shifted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.formats import FORMATS
from transforms.calibrate.calibration import Calibration
from transforms.full_range.recorded_shifts import recorded_shifts
from transforms.full_range.shift_tensors import count_added, is_mean, shift_tensors
from transforms.graph import dtypes
from transforms.graph.some_names import some_names
from transforms.plan.tensor_grids import TensorGrid
from transforms.scheme import Scheme
from transforms.scheme.scheme_values import FREE, PADDED

_INT8 = "int8"
_HEADROOM = 8 / 7
"""Times the range with a zero point at its end: finer steps leave headroom for numbers of new data."""


@dataclass(frozen=True)
class Shifted:
    """How many tensors were shifted, how many Pads and Subs were ``added``, and the new ``steps`` of tensors.

    Those go by the names of tensors in the float model.
    """

    count: int = 0
    added: int = 0
    steps: Mapping[str, float] = field(default_factory=dict)


def wants_full_range(scheme: Scheme) -> bool:
    """Return whether a scheme leaves to the outputs which tensors of int8 are shifted."""
    return (
        scheme.full_range in (PADDED, FREE)
        and scheme.activation == _INT8
        and not scheme.keep_weight_nodes  # sums of weights are those of integers
    )


def shift_all(graph: gs.Graph, scheme: Scheme, statistics: Calibration) -> tuple[str, ...]:
    """Shift all tensors of a quantized graph that can be, in place; return what ``full_range`` says then.

    ``padded`` in the scheme: those before a Conv that pads, inputs and means, too.
    """
    extremes, padded = statistics.extremes(), scheme.full_range != FREE
    names = {str(node.outputs[0].name) for node in graph.nodes if node.op in ("Conv", "Gemm")}
    if padded:
        subtracted = [tensor for tensor in graph.inputs if dtypes.is_type(tensor, dtypes.FLOAT)]
        subtracted += [node.outputs[0] for node in graph.nodes if is_mean(node)]
        names |= {str(one.name) for one in subtracted if extremes.get(one.name, (-1.0,))[0] >= 0}
    return tuple(shift_tensors(graph, names, padded=padded, tops=_tops(graph, statistics)))


def apply_full_range(graph: gs.Graph, scheme: Scheme, statistics: Calibration) -> Shifted:
    """Shift the tensors that a scheme names, in place, on ranges of these statistics; none by a word.

    Raises ValueError, naming the tensor, for one that cannot be shifted.
    """
    names = () if isinstance(scheme.full_range, str) else scheme.full_range
    if not names:
        return Shifted()
    before = count_added(graph)
    shifts = shift_tensors(graph, {*names}, padded=True, tops=_tops(graph, statistics))
    if missing := [name for name in names if name not in shifts]:
        raise ValueError(f"full_range names {some_names(missing)}, which cannot be shifted")
    steps = {name: shift / 128 for name, shift in recorded_shifts(graph).items()}
    return Shifted(len(shifts), count_added(graph) - before, steps)


def shift_grids(grids: list[TensorGrid] | None, shifted: Shifted) -> None:
    """Give grids of shifted tensors their new scales, in place; their lowest level stands for 0."""
    for number, grid in enumerate(grids or ()):
        if grids is not None and grid.name in shifted.steps and grid.format == _INT8:
            scale, zero = np.float32(shifted.steps[grid.name]), np.zeros_like(grid.zero_point)
            grids[number] = replace(grid, scale=np.full_like(grid.scale, scale), zero_point=zero)


def _tops(graph: gs.Graph, statistics: Calibration) -> dict[str, float]:
    """Return the upper ends of ranges with a zero point of tensors that are quantized and never negative."""
    quantized = {node.inputs[0].name for node in graph.nodes if node.op == "QuantizeLinear"}
    names = [name for name, (low, _) in statistics.extremes().items() if low >= 0 and name in quantized]
    return {name: _HEADROOM * statistics.range(name, FORMATS[_INT8], symmetric=False)[1] for name in names}
