"""Round tensors to 8 bits at run time, with one range for a tensor or one for each of its rows.

A row runs along the last axis, over which products sum: a token, a frame. With its own range it gives the
same numbers alone, after padding and in a batch. Rows are divided by their largest magnitudes; the quotients
have a fixed grid, from -1 to 1, or from 0 to 1 where no number of the tensor can be negative.
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
"""What gets a range of its own at run time."""

_HIGHEST = 255  # of uint8
_LEAST = float(np.finfo(np.float32).tiny)  # the divisor of rows of zeros
_AXES_AS_INPUT = 18  # opset of ReduceMax

_SLIGHT, _SLIGHTLY_NEGATIVE = -0.5, 48
"""Lower limit down to which numbers count as slightly negative, as Gelu's do, and the zero point for them.

Rows of Gelu whose largest number is at least 0.47 have finer steps than with -1 to 1, by 4.2 dB from 0.74 on;
rows of smaller numbers have steps of 0.0036."""


@dataclass(frozen=True)
class RowGrid:
    """The uint8 grid of rows: steps of (largest number of the row, at least ``least``) / ``steps``.

    ``zero_point``: the code of 0. ``of_magnitudes``: the largest number is the largest magnitude.
    """

    zero_point: int
    least: float = _LEAST
    of_magnitudes: bool = False

    @property
    def steps(self) -> int:
        """The number of steps up to the largest number."""
        return _HIGHEST - self.zero_point


SYMMETRIC = RowGrid(128, of_magnitudes=True)


def row_grid(tensor: gs.Tensor) -> RowGrid:
    """Return the grid of a tensor's rows, given the least value that the tensor can have."""
    low = limits_of(tensor)[0]
    if low < _SLIGHT:
        return SYMMETRIC
    if low >= 0:
        return RowGrid(0)
    zero_point = _SLIGHTLY_NEGATIVE
    return RowGrid(zero_point, -low * (_HIGHEST - zero_point) / zero_point)


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor with one range: the nodes that round it, its uint8 numbers, scalar scale and zero point."""

    nodes: Sequence[gs.Node]
    numbers: gs.Tensor
    scale: gs.Tensor
    zero_point: gs.Tensor


@dataclass(frozen=True)
class DividedRows:
    """A tensor with a range for each row: the nodes that round it, and the rounded rows in float.

    ``divided`` lies within -1 and 1; ``divided * factor``, with factor [.., 1], is the rounded tensor.
    """

    nodes: Sequence[gs.Node]
    divided: gs.Tensor
    factor: gs.Tensor


def rounds_rows(tensor: gs.Tensor, ranges: str) -> bool:
    """Return whether the rows of a tensor get ranges of their own; a single row has the tensor's range.

    ``ranges``: one of :data:`RANGES`.
    """
    return ranges == ROW and not (tensor.shape and all(size == 1 for size in tensor.shape[:-1]))


class RunTimeRounding:
    """Writes the nodes that round tensors of a graph, which share constants."""

    def __init__(self, graph: gs.Graph, names: walk.Names, ranges: str) -> None:
        """Write into a graph, with unused names; ``ranges`` is one of :data:`RANGES`."""
        self._opset, self._ranges = graph.opset, ranges
        self.names = names
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], gs.Constant] = {}

    def round(self, tensor: gs.Tensor) -> RoundedTensor | DividedRows:
        """Return the rounded form of a float32 tensor of rank 2 or more, which nothing reads yet."""
        return self._in_rows(tensor) if rounds_rows(tensor, self._ranges) else self._whole(tensor)

    def _whole(self, tensor: gs.Tensor) -> RoundedTensor:
        """Round by ONNX's DynamicQuantizeLinear, whose range contains 0 and whose zero point is exact."""
        names = self.names
        numbers = gs.Variable(names.derive(tensor.name, "quantized"), np.uint8, tensor.shape)
        scale = gs.Variable(names.derive(tensor.name, "scale"), np.float32, [])
        zero_point = gs.Variable(names.derive(tensor.name, "zero_point"), np.uint8, [])
        label, outputs = names.derive(tensor.name, "DynamicQuantizeLinear"), [numbers, scale, zero_point]
        node = gs.Node("DynamicQuantizeLinear", label, {}, [tensor], outputs)
        return RoundedTensor([node], numbers, scale, zero_point)

    def _in_rows(self, tensor: gs.Tensor) -> DividedRows:
        """Divide rows by their largest numbers, and round the quotients."""
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
        """Return the shared constant with these values."""
        key = values.tobytes(), values.dtype.name, values.shape
        if key not in self._constants:
            self._constants[key] = gs.Constant(self.names.derive("", name), values)
        return self._constants[key]


class _Chain:
    """A sequence of nodes with names derived from a tensor."""

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
        """Add a node and return its output."""
        output = gs.Variable(self._names.derive(self._stem, suffix), dtype, list(shape))
        self.nodes.append(
            gs.Node(op, self._names.derive(output.name, op), dict(attrs or {}), inputs, [output])
        )
        return output
