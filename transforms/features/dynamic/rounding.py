"""Tensors rounded to 8 bits at run time: on one range for all of a tensor, or on one for each of its rows.

A row runs along the last axis, which products sum over: a token, a frame. With a range of its own it has the
same numbers alone, behind padding and in a batch. Rows are divided by their largest magnitudes; what is left
has a fixed grid, from -1 to 1, or from 0 to 1 where no number of the tensor can be negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from transforms.graph import walk
from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.graph.value_limits import limits_of

ROW, TENSOR = RANGES = ("row", "tensor")
"""What has a range of its own at run time."""

_HIGHEST = 255  # of uint8
_LEAST = float(np.finfo(np.float32).tiny)  # by which rows of zeros are divided
_AXES_AS_INPUT = 18  # opset of ReduceMax

_SLIGHT, _SLIGHTLY_NEGATIVE = -0.5, 48
"""Down to which limit numbers are slightly negative, as those of Gelu are, and the zero point for them.

Rows of Gelu whose largest number is 0.47 and more have finer steps than from -1 to 1, by 4.2 dB from 0.74 on;
those of smaller numbers have steps of 0.0036."""


@dataclass(frozen=True)
class RowGrid:
    """The grid of rows in uint8: a number is its largest one, or ``least``, by ``steps``, times an integer.

    ``zero_point``: what stands for 0. ``of_magnitudes``: whether the largest number is one without sign.
    """

    zero_point: int
    least: float = _LEAST
    of_magnitudes: bool = False

    @property
    def steps(self) -> int:
        """How many steps the largest number has."""
        return _HIGHEST - self.zero_point


SYMMETRIC = RowGrid(128, of_magnitudes=True)


def row_grid(tensor: gs.Tensor) -> RowGrid:
    """Return the grid of a tensor's rows, by the least number that it can have."""
    low = limits_of(tensor)[0]
    if low < _SLIGHT:
        return SYMMETRIC
    if low >= 0:
        return RowGrid(0)
    zero_point = _SLIGHTLY_NEGATIVE
    return RowGrid(zero_point, -low * (_HIGHEST - zero_point) / zero_point)


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor on one range: the nodes that round it, uint8 numbers, their scale and zero point, scalars."""

    nodes: Sequence[gs.Node]
    numbers: gs.Tensor
    scale: gs.Tensor
    zero_point: gs.Tensor


@dataclass(frozen=True)
class DividedRows:
    """A tensor on a range for each row: the nodes that round it, and floats of the integers.

    These, ``divided``, are within -1 and 1; times ``factor`` [.., 1] they are what was rounded.
    """

    nodes: Sequence[gs.Node]
    divided: gs.Tensor
    factor: gs.Tensor


def rounds_rows(tensor: gs.Tensor, ranges: str) -> bool:
    """Return whether the rows of a tensor get ranges of their own; the range of a single row is the tensor's.

    ``ranges``: one of :data:`RANGES`.
    """
    return ranges == ROW and not (tensor.shape and all(size == 1 for size in tensor.shape[:-1]))


class RunTimeRounding:
    """Writes the nodes that round tensors of a graph; constants that they share are made once."""

    def __init__(self, graph: gs.Graph, names: walk.Names, ranges: str) -> None:
        """Write for a graph, with names that are free there; ``ranges`` is one of :data:`RANGES`."""
        self._opset, self._ranges = graph.opset, ranges
        self.names = names
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], gs.Constant] = {}

    def round(self, tensor: gs.Tensor) -> RoundedTensor | DividedRows:
        """Return a float32 tensor of rank 2 or more on integers, which nothing reads yet."""
        return self._in_rows(tensor) if rounds_rows(tensor, self._ranges) else self._whole(tensor)

    def _whole(self, tensor: gs.Tensor) -> RoundedTensor:
        """Round by ONNX's DynamicQuantizeLinear: a range with zero in it, and a zero point that fits it."""
        names = self.names
        numbers = gs.Variable(names.derive(tensor.name, "quantized"), np.uint8, tensor.shape)
        scale = gs.Variable(names.derive(tensor.name, "scale"), np.float32, [])
        zero_point = gs.Variable(names.derive(tensor.name, "zero_point"), np.uint8, [])
        label, outputs = names.derive(tensor.name, "DynamicQuantizeLinear"), [numbers, scale, zero_point]
        node = gs.Node("DynamicQuantizeLinear", label, {}, [tensor], outputs)
        return RoundedTensor([node], numbers, scale, zero_point)

    def _in_rows(self, tensor: gs.Tensor) -> DividedRows:
        """Divide rows by their largest numbers, and round them to the grid of 1."""
        chain, source, grid = _Chain(self.names, tensor), tensor, row_grid(tensor)
        if grid.of_magnitudes:
            source = chain.add("Abs", [tensor], "magnitudes", tensor.shape)
        rows, inputs, axes = [*tensor.shape[:-1], 1], [source], {"axes": [-1]}
        if self._opset >= _AXES_AS_INPUT:
            inputs, axes = [source, self._constant("last_axis", np.array([-1], np.int64))], {}
        largest = chain.add("ReduceMax", inputs, "largest", rows, attrs={"keepdims": 1, **axes})
        least = self._constant("least", np.array(grid.least, np.float32))
        factor = chain.add("Max", [largest, least], "range", rows)
        shares = chain.add("Div", [tensor, factor], "divided", tensor.shape)
        scale = self._constant("step", np.array(1 / grid.steps, np.float32))
        pair = [scale, self._constant("zero_point", np.array(grid.zero_point, np.uint8))]
        numbers = chain.add(QUANTIZE_LINEAR, [shares, *pair], "quantized", tensor.shape, np.uint8)
        back = chain.add(DEQUANTIZE_LINEAR, [numbers, *pair], "dequantized", tensor.shape)
        return DividedRows(chain.nodes, back, factor)

    def _constant(self, name: str, values: AnyArray) -> gs.Constant:
        """Return the constant that holds these values."""
        key = values.tobytes(), values.dtype.name, values.shape
        if key not in self._constants:
            self._constants[key] = gs.Constant(self.names.derive("", name), values)
        return self._constants[key]


class _Chain:
    """Nodes one after another, named for a tensor."""

    def __init__(self, names: walk.Names, tensor: gs.Tensor) -> None:
        self._names, self._stem = names, tensor.name
        self.nodes: list[gs.Node] = []

    def add(
        self,
        op: str,
        inputs: list[gs.Tensor],
        suffix: str,
        shape: Sequence[object],
        dtype: type[np.generic] = np.float32,
        attrs: Mapping[str, object] | None = None,
    ) -> gs.Variable:
        """Add a node, and return what it makes."""
        made = gs.Variable(self._names.derive(self._stem, suffix), dtype, list(shape))
        self.nodes.append(gs.Node(op, self._names.derive(made.name, op), dict(attrs or {}), inputs, [made]))
        return made
