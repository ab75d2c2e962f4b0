"""Write weights of recurrent operators as integers with the nodes that dequantize them.

ONNX Runtime computes a DequantizeLinear of a stored weight in every run, and its recurrent kernels pack only
stored weights beforehand: a step of an LSTM takes 2 to 15 times as long after one. It folds a Cast and a Mul
of constants when it opens a model, so they cost nothing. Compilers for other targets expect
DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray, QParams
from transforms.graph import dtypes, walk
from transforms.graph.constants import exportable
from transforms.graph.lazy_values import Weight, constant, derived
from transforms.graph.qdq import DEQUANTIZE_LINEAR


class RowsWriter:
    """Writes integers [D, R, N] with scales and zero points [D, R, ceil(N / block)] as a target tensor."""

    def __init__(self, names: walk.Names, source: gs.Constant, integers: Weight, target: gs.Variable) -> None:
        """Take the weight, its integers, and the tensor that replaces it."""
        self._names, self._source, self._integers, self._target = names, source, integers, target

    def folded(self, parameters: QParams, block: int) -> list[gs.Node]:
        """Return a Cast and a Mul, with a Sub between them for zero points, a Reshape and Slice for blocks.

        The last block of a row is padded with zeros.
        """
        scale, zero_point = (part.astype(np.float32)[..., None] for part in parameters)
        count, length = scale.shape[2], self._integers.shape[2]
        shape = (*scale.shape[:3], block) if count > 1 else self._integers.shape
        if count == 1:
            scale, zero_point = scale[..., 0], zero_point[..., 0]
        stored = derived(
            self._integers, lambda array: _in_blocks(array, block, shape), self._integers.dtype, shape
        )
        nodes = [self._node("Cast", [self._constant("quantized", stored)], {"to": dtypes.FLOAT})]
        if zero_point.any():
            nodes.append(self._after(nodes, "Sub", self._constant("zero_point", zero_point)))
        nodes.append(self._after(nodes, "Mul", self._constant("scale", scale)))
        if count > 1:
            nodes.append(self._after(nodes, "Reshape", self._numbers("shape", *shape[:2], count * block)))
        if count * block > length and count > 1:
            bounds = [self._numbers(name, n) for name, n in {"start": 0, "end": length, "axis": 2}.items()]
            nodes.append(self._after(nodes, "Slice", *bounds))
        return self._ended(nodes)

    def dequantized(self, parameters: QParams, block: int, domain: str) -> list[gs.Node]:
        """Return a DequantizeLinear of the rows of all directions, and the Reshape to rank 3."""
        directions, rows, length = self._integers.shape
        shape, count = (directions * rows, length), parameters[0].shape[2]
        size = shape if count > 1 else shape[:1]
        reshaped = [part.reshape(*size[:1], *([count] if count > 1 else [])) for part in parameters]
        stored = derived(self._integers, lambda array: array.reshape(shape), self._integers.dtype, shape)
        attrs = {"axis": 1, "block_size": block} if count > 1 else {"axis": 0}
        inputs = [
            self._constant("quantized", stored),
            *map(self._constant, ("scale", "zero_point"), reshaped),
        ]
        first = self._node(DEQUANTIZE_LINEAR, inputs, attrs, domain)
        return self._ended(
            [first, self._after([first], "Reshape", self._numbers("shape", *self._integers.shape))]
        )

    def _after(self, nodes: list[gs.Node], op: str, *others: gs.Tensor) -> gs.Node:
        return self._node(op, [nodes[-1].outputs[0], *others])

    def _node(
        self, op: str, inputs: list[gs.Tensor], attrs: Mapping[str, int] | None = None, domain: str = ""
    ) -> gs.Node:
        output = gs.Variable(self._names.derive(self._source.name, op.lower()), np.dtype(np.float32))
        name = self._names.derive(self._source.name, op)
        return gs.Node(op, name, dict(attrs or {}), inputs, [output], domain=domain or None)

    def _ended(self, nodes: list[gs.Node]) -> list[gs.Node]:
        """Let the last node output the target."""
        nodes[-1].outputs = [self._target]
        return nodes

    def _constant(self, suffix: str, values: Weight) -> gs.Constant:
        return constant(self._names.derive(self._source.name, suffix), exportable(values))

    def _numbers(self, suffix: str, *numbers: int) -> gs.Constant:
        return self._constant(suffix, np.array(numbers, np.int64))


def _in_blocks(integers: AnyArray, block: int, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Return integers padded to whole blocks, if a row has several."""
    if len(shape) == integers.ndim:
        return integers
    padded = np.zeros((*shape[:2], shape[2] * block), integers.dtype)
    padded[..., : integers.shape[2]] = integers
    return padded.reshape(shape)
