"""Nodes that compute a weight from the integers or 8-bit floats of its grid, with the original numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ops import FORMATS
from ops.array_types import AnyArray
from ops.grids.codes import GridCodes
from ops.grids.recognise import FoundGrid
from ops.grids.small_floats import ELEMENTS
from transforms.graph import dtypes, walk
from transforms.graph.constants import exportable
from transforms.graph.lazy_values import Weight, constant, derived

ROUNDED = {"float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16}
"""Types to which a grid's numbers may have been rounded in the end."""


@dataclass
class Decoder:
    """Builds the nodes that make one tensor, in order, with names derived from a weight."""

    weight: gs.Constant
    names: walk.Names
    nodes: list[gs.Node] = field(default_factory=list)

    def add(self, op: str, given: list[gs.Tensor], element: int = dtypes.FLOAT, **attrs: object) -> gs.Tensor:
        """Add a node and return its output."""
        suffix = "dequantized" if op == "DequantizeLinear" else op.lower()
        output = gs.Variable(self.names.derive(self.weight.name, suffix), element)
        self.nodes.append(gs.Node(op, self.names.derive(self.weight.name, op), attrs, given, [output]))
        return output

    def constant(self, suffix: str, values: Weight) -> gs.Constant:
        """Return a constant with the name of the weight and a suffix."""
        return constant(self.names.derive(self.weight.name, suffix), exportable(values))

    def rounded(self, made: gs.Tensor, rounding: str) -> gs.Tensor:
        """Return a tensor rounded to the type to which the grid's numbers were rounded."""
        if rounding not in ROUNDED:
            return made
        element = ROUNDED[rounding]
        return self.add("Cast", [self.add("Cast", [made], element, to=element)], to=dtypes.FLOAT)

    def dequantized(self, codes: GridCodes) -> gs.Tensor:
        """Return the weight, computed by standard operators."""
        grid, tensor = codes.grid, self.weight
        inputs = [self._numbers(codes), self.constant("scale", codes.step)]
        if codes.zero.any() and not codes.is_signed:
            inputs.append(self.constant("zero_point", codes.zero.astype(inputs[0].dtype)))
        block = {"block_size": grid.block} if grid.block else {}
        result = self.add("DequantizeLinear", inputs, axis=grid.axis, **block)
        if grid.minimum is not None:
            least = self.constant("minimum", _as_addend(grid, tensor.shape))
            if grid.block:
                of_each = np.arange(tensor.shape[grid.axis], dtype=np.int64) // grid.block
                least = self.add("Gather", [least, self.constant("block", of_each)], axis=grid.axis)
            result = self.add("Add", [result, least])
        if grid.order is not None:
            places = self.constant("places", np.argsort(grid.order).astype(np.int64))
            result = self.add("Gather", [result, places], axis=grid.axis)
        result = self.rounded(result, grid.kind.rounding)
        result.shape = list(tensor.shape)
        return result

    def _numbers(self, codes: GridCodes) -> gs.Constant:
        """Return the integers or 8-bit floats in the order of blocks."""
        grid, middle = codes.grid, codes.middle
        kind = FORMATS[f"{'' if codes.is_signed else 'u'}int{codes.bits}"].dtype
        dtype = ELEMENTS[grid.kind.element] if grid.kind.element else kind

        def _of(values: AnyArray) -> AnyArray:
            integers = codes.of_values(values)
            if grid.order is not None:
                integers = np.take(integers, grid.order, grid.axis)
            return (
                (integers.astype(np.int16) - middle).astype(dtype)
                if codes.is_signed
                else integers.astype(dtype)
            )

        return self.constant("quantized", derived(self.weight._values, _of, dtype))


def _as_addend(grid: FoundGrid, shape: tuple[int, ...]) -> AnyArray:
    """Return the minima of blocks as they are, of channels so that they broadcast."""
    assert grid.minimum is not None, "asked for where there is one"
    return grid.minimum if grid.block else grid.expanded(grid.minimum, shape)
