"""Tensors rounded to 8 bits at run time: on one range for all of a tensor, or on one for each of its rows.

A row runs along the last axis, which products sum over: a token, a frame. With a range of its own it has the
same numbers alone, behind padding and in a batch. That range is symmetric with a zero point of 128, or starts
at 0 where no number of the tensor can be negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from transforms.graph import walk
from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.graph.value_limits import limits_of

ROW, TENSOR = RANGES = ("row", "tensor")
"""What has a range of its own at run time."""

MIDDLE, HIGHEST = 128, 255
"""Of uint8: what stands for 0 in a row of both signs, and the largest number."""

_FIRST_OPSET = 13  # in which QuantizeLinear takes a scale for each index of an axis
_AXES_AS_INPUT = 18  # opset of ReduceMax
_ALLOWS_ZERO = 14  # opset of Reshape
_MATRIX_RANK = 2
_LEAST = np.finfo(np.float32).tiny  # of scales, for rows of zeros


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor on integers: nodes, uint8 numbers, zero point, and scale: a scalar, or [.., 1] for rows."""

    nodes: Sequence[gs.Node]
    numbers: gs.Tensor
    scale: gs.Tensor
    zero_point: gs.Tensor
    in_rows: bool


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

    def round(self, tensor: gs.Tensor) -> RoundedTensor:
        """Return a float32 tensor of rank 2 or more on integers, which nothing reads yet."""
        if rounds_rows(tensor, self._ranges) and self._opset >= _FIRST_OPSET:
            return self._in_rows(tensor)
        return self._whole(tensor)

    def steps(self, rounded: RoundedTensor, tensor: gs.Tensor) -> gs.Node:
        """Return the node that makes floats of integers: of those of rows, without their scales."""
        scale = self.constant("step", np.array(1, np.float32)) if rounded.in_rows else rounded.scale
        chain = _Chain(self.names, tensor)
        chain.add(DEQUANTIZE_LINEAR, [rounded.numbers, scale, rounded.zero_point], "rounded", tensor.shape)
        return chain.nodes[0]

    def constant(self, name: str, values: AnyArray) -> gs.Constant:
        """Return the constant that holds these values."""
        key = values.tobytes(), values.dtype.name, values.shape
        if key not in self._constants:
            self._constants[key] = gs.Constant(self.names.derive("", name), values)
        return self._constants[key]

    def _whole(self, tensor: gs.Tensor) -> RoundedTensor:
        """Round by ONNX's DynamicQuantizeLinear: a range with zero in it, and a zero point that fits it."""
        names = self.names
        numbers = gs.Variable(names.derive(tensor.name, "quantized"), np.uint8, tensor.shape)
        scale = gs.Variable(names.derive(tensor.name, "scale"), np.float32, [])
        zero_point = gs.Variable(names.derive(tensor.name, "zero_point"), np.uint8, [])
        label, outputs = names.derive(tensor.name, "DynamicQuantizeLinear"), [numbers, scale, zero_point]
        node = gs.Node("DynamicQuantizeLinear", label, {}, [tensor], outputs)
        return RoundedTensor([node], numbers, scale, zero_point, in_rows=False)

    def _in_rows(self, tensor: gs.Tensor) -> RoundedTensor:
        """Round by QuantizeLinear, which takes scales along an axis: of the matrix of all rows."""
        chain, zero = _Chain(self.names, tensor), 0 if limits_of(tensor)[0] >= 0 else MIDDLE
        scale = self._scales(chain, tensor, zero)
        count, channels = _count(tensor.shape[:-1]), tensor.shape[-1]
        flat = chain.add("Reshape", [scale, self._sizes([-1])], "scales", [count])
        grid = [flat, self._zero_points(chain, flat, zero)]
        zero_point = self.constant("zero_point", np.array(zero, np.uint8))
        if len(tensor.shape) == _MATRIX_RANK:
            numbers = chain.add(QUANTIZE_LINEAR, [tensor, *grid], "quantized", tensor.shape, np.uint8, axis=0)
            return RoundedTensor(chain.nodes, numbers, scale, zero_point, in_rows=True)
        matrix = chain.add("Reshape", [tensor, self._sizes([-1, channels])], "matrix", [count, channels])
        rows = chain.add(QUANTIZE_LINEAR, [matrix, *grid], "rows", matrix.shape, np.uint8, axis=0)
        shape = chain.add("Shape", [tensor], "shape", [len(tensor.shape)], np.int64)
        attrs = {"allowzero": 1} if self._opset >= _ALLOWS_ZERO else {}
        numbers = chain.add("Reshape", [rows, shape], "quantized", tensor.shape, np.uint8, **attrs)
        return RoundedTensor(chain.nodes, numbers, scale, zero_point, in_rows=True)

    def _scales(self, chain: _Chain, tensor: gs.Tensor, zero: int) -> gs.Variable:
        """Add the nodes that make the scale of each row [.., 1]: its largest magnitude, in steps."""
        shape, magnitudes = [*tensor.shape[:-1], 1], tensor
        if zero:
            magnitudes = chain.add("Abs", [tensor], "magnitudes", tensor.shape)
        is_input = self._opset >= _AXES_AS_INPUT
        inputs = [magnitudes, self._sizes([-1])] if is_input else [magnitudes]
        axes = {} if is_input else {"axes": [-1]}
        largest = chain.add("ReduceMax", inputs, "largest", shape, keepdims=1, **axes)
        step = self.constant("step", np.array(1 / (HIGHEST - zero), np.float32))
        scale = chain.add("Mul", [largest, step], "step", shape)
        least = self.constant("least_scale", np.array(_LEAST, np.float32))
        return chain.add("Max", [scale, least], "scale", shape)

    def _zero_points(self, chain: _Chain, scales: gs.Variable, zero: int) -> gs.Tensor:
        """Return a zero point for each row: stored where the number of rows is known."""
        [count] = scales.shape
        if isinstance(count, int):
            return self.constant("zero_points", np.full(count, zero, np.uint8))
        value = gs.Constant(self.names.derive("", "value"), np.array([zero], np.uint8))
        shape = chain.add("Shape", [scales], "count", [1], np.int64)
        return chain.add("ConstantOfShape", [shape], "zero_points", [count], np.uint8, value=value)

    def _sizes(self, sizes: list[int]) -> gs.Constant:
        return self.constant("sizes", np.array(sizes, np.int64))


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
        **attrs: object,
    ) -> gs.Variable:
        """Add a node, and return what it makes."""
        made = gs.Variable(self._names.derive(self._stem, suffix), dtype, list(shape))
        self.nodes.append(gs.Node(op, self._names.derive(made.name, op), attrs, inputs, [made]))
        return made


def _count(sizes: Sequence[object]) -> object:
    """Return the number of rows, a name where a size has no number."""
    known = [size for size in sizes if isinstance(size, int)]
    return math.prod(known) if len(known) == len(sizes) else "rows"
