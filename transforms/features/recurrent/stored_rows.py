"""Read the stored weights of recurrent operators: integers in rows, and their dequantizing nodes.

They are written by :mod:`transforms.features.recurrent.rows_writer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Float32Array, QParams
from ops.formats import FORMATS
from ops.integer_blocks import dequantize_blocks
from transforms.features.recurrent.operators import ROWS_RANK
from transforms.graph import walk
from transforms.graph.constant_nodes import MADE_OF
from transforms.graph.constants import load
from transforms.graph.qdq import DEQUANTIZE_LINEAR
from transforms.graph.rewire import onnx_op


@dataclass(frozen=True)
class StoredRows:
    """Integers [D, R, N], scales and zero points [D, R, ceil(N / block)], and the nodes that dequantize them.

    ``nodes``: in order; the last one outputs the weight.
    """

    source: gs.Constant
    integers: AnyArray
    parameters: QParams
    block: int
    nodes: Sequence[gs.Node]

    @property
    def format(self) -> str:
        """The name of the integers' format."""
        return str(self.integers.dtype)

    def values(self) -> Float32Array:
        """Return the dequantized numbers, [D, R, N]."""
        return dequantize_blocks(self.integers, self.parameters, ROWS_RANK - 1, self.block)


def stored_rows(tensor: gs.Tensor) -> StoredRows | None:
    """Return the integers from which a tensor of rank 3 is dequantized, or None."""
    nodes: list[gs.Node] = []
    while not isinstance(tensor, gs.Constant):
        node = walk.producer(tensor)
        if node is None or onnx_op(node) not in MADE_OF or not all(map(walk.is_given, node.inputs[1:])):
            return None
        nodes.insert(0, node)
        tensor = node.inputs[0]
    name = str(tensor.dtype)  # an int for bfloat16
    if not nodes or name not in FORMATS or not FORMATS[name].is_integer:
        return None
    return _read(tensor, nodes)


def _read(source: gs.Constant, nodes: list[gs.Node]) -> StoredRows | None:
    """Return the rows if the nodes have one of the two written forms, or None."""
    arrays = {onnx_op(node): [load(t) for t in node.inputs[1:]] for node in nodes}
    ops, stored = [onnx_op(node) for node in nodes], load(source)
    # the form for other targets: rows of all directions in one DequantizeLinear
    if ops == [DEQUANTIZE_LINEAR, "Reshape"]:
        scale, *zeros = arrays[DEQUANTIZE_LINEAR]
        shape = tuple(int(size) for size in arrays["Reshape"][0])
        if len(shape) != ROWS_RANK or shape[-1:] != stored.shape[-1:]:
            return None
        integers, leading = stored.reshape(shape), shape[:2]
        block = int(nodes[0].attrs.get("block_size", shape[2]))
    # the form that ONNX Runtime folds; Reshape and Slice take the padding off blocks
    elif [op for op in ops if op != "Sub"] in (
        ["Cast", "Mul"],
        ["Cast", "Mul", "Reshape"],
        ["Cast", "Mul", "Reshape", "Slice"],
    ):
        scale, zeros = arrays["Mul"][0], arrays.get("Sub", [])
        leading, block = stored.shape[:2], stored.shape[-1]
        integers = stored.reshape(*leading, -1)
        if "Slice" in arrays:
            integers = integers[..., : int(arrays["Slice"][1][0])]
    else:
        return None
    if scale.dtype != np.float32 or scale.size * block < integers.size or len(leading) != ROWS_RANK - 1:
        return None
    scale = scale.reshape(*leading, -1)
    zero = zeros[0].astype(stored.dtype) if zeros else np.zeros(1, stored.dtype)
    # a single zero point stands for all of them
    zero_points = (
        np.broadcast_to(zero.reshape(-1), scale.size).reshape(scale.shape)
        if zero.size == 1
        else zero.reshape(scale.shape)
    )
    return StoredRows(source, integers, (scale, zero_points), block, nodes)
