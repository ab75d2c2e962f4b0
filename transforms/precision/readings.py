"""List the quantized operands of a layer: weights and inputs, with their float counterparts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

import ops
from ops.array_types import AnyArray
from ops.integers import dequantize
from transforms import features
from transforms.compare.node_formats import rounded_format, type_name
from transforms.features.hooks import WeightForm
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.qdq import DEQUANTIZE

OUTPUT = "output "
"""Prefix of the name of a layer that is a rounded output."""

_RAW = 6  # most nodes between a float tensor and the operand that is rounded from it


@dataclass(frozen=True)
class Grid:
    """A linear grid: scales and zero points, their axis if they are several, lowest and highest number."""

    scale: AnyArray
    zero_point: AnyArray
    axis: int
    low: float
    high: float


@dataclass(frozen=True)
class Reading:
    """One rounded input of a layer, at ``index`` of its inputs.

    A constant has ``values`` and ``rounded``, an activation has ``source``, the name of the float tensor that
    is rounded, and ``label``, its role in words. ``grid`` is None for formats without scales.
    ``is_tunable``: False for weights in a form that belongs to a feature.
    """

    index: int
    format: str
    grid: Grid | None
    values: AnyArray | None = None
    rounded: AnyArray | None = None
    source: str = ""
    label: str = ""
    is_tunable: bool = True


def readings(first: gs.Node, second: gs.Node, floats: Mapping[int, gs.Tensor]) -> Iterator[Reading]:
    """Yield the rounded inputs of ``second``, a node of a quantized model, paired with ``first`` in float.

    ``floats``: the tensor of the float model by the id of its counterpart in the quantized model.
    """
    for index, (float_tensor, tensor) in enumerate(zip(first.inputs, second.inputs, strict=False)):
        if isinstance(float_tensor, gs.Constant):
            if dtypes.is_type(float_tensor, dtypes.FLOAT):
                yield from _of_constant(index, load(float_tensor), tensor, features.weights_of(first))
            continue
        if rounding := _rounding(tensor, floats):
            name, grid, raw = rounding
            source = shown_of(raw)
            is_end = first.name.startswith(OUTPUT)
            label = f"output '{first.outputs[0].name}'" if is_end else f"input '{source}'"
            yield Reading(index, name, grid, source=source, label=label)


def shown_of(tensor: gs.Tensor) -> str:
    """Return the name of the output of a Relu or Clip that is the only consumer of a tensor, else its own."""
    while len(tensor.outputs) == 1 and tensor.outputs[0].op in ("Relu", "Clip"):
        tensor = tensor.outputs[0].outputs[0]
    return str(tensor.name)


def _of_constant(
    index: int, values: AnyArray, tensor: gs.Tensor, form: WeightForm | None
) -> Iterator[Reading]:
    node, rows = walk.producer(tensor), None if form is None else form.read(tensor)
    if isinstance(tensor, gs.Constant):
        rounded = load(tensor)
        is_alike = rounded.shape == values.shape and rounded.dtype == values.dtype
        if is_alike and not np.array_equal(rounded, values):
            yield Reading(index, "", None, values, rounded)
    elif rows is not None and rows.integers.shape == values.shape:
        yield Reading(index, rows.format, None, values, rows.values(), is_tunable=False)
    elif node is not None and node.op in DEQUANTIZE and isinstance(node.inputs[0], gs.Constant):
        stored = load(node.inputs[0])
        name, grid = type_name(dtypes.element_type(node.inputs[0])), _grid(node)
        if grid is not None and not node.attrs.get("block_size") and stored.shape == values.shape:
            rounded = dequantize(stored, grid.scale, grid.zero_point, grid.axis if grid.scale.ndim else None)
            yield Reading(index, name, grid, values, rounded)


def _rounding(
    tensor: gs.Tensor, floats: Mapping[int, gs.Tensor]
) -> tuple[str, Grid | None, gs.Tensor] | None:
    """Return the format and grid of a rounded tensor, and the float tensor; None if nothing is rounded."""
    name, grid, shift = "", None, 0.0
    for _ in range(_RAW):
        if id(tensor) in floats:
            return (name, grid and _shifted(grid, shift), floats[id(tensor)]) if name else None
        node = walk.producer(tensor)
        if node is None:
            return None
        name = rounded_format(node) or name
        grid = _grid(node) if node.op in DEQUANTIZE else grid
        if node.op == "Sub" and isinstance(node.inputs[1], gs.Constant) and not node.inputs[1].shape:
            shift += float(load(node.inputs[1]))
        tensor = node.inputs[0]
    return None


def _shifted(grid: Grid, shift: float) -> Grid:
    """Return the grid of a tensor before ``shift`` was subtracted from it."""
    zero = grid.zero_point.astype(np.float64) - shift / grid.scale
    return replace(grid, zero_point=zero, low=grid.low + shift, high=grid.high + shift) if shift else grid


def _grid(node: gs.Node) -> Grid | None:
    """Return the grid of a dequantizing node; None if its scale is computed or its type no integer."""
    scale, *rest = node.inputs[1:3]
    if not all(isinstance(tensor, gs.Constant) for tensor in (scale, *rest)):
        return None
    steps = np.asarray(load(scale), np.float32)
    zero = load(rest[0]) if rest else np.zeros(steps.shape, np.uint8)
    kind = type_name(dtypes.element_type(node.inputs[0]) or dtypes.element_type(rest[0] if rest else scale))
    try:
        row = ops.get_format(kind)
    except ValueError:
        return None
    if not row.is_integer:
        return None
    wide = zero.astype(np.float64)
    low, high = (row.lowest - wide) * steps, (row.highest - wide) * steps
    return Grid(steps, zero, int(node.attrs.get("axis", 1)), float(low.min()), float(high.max()))
