"""Weights of recurrent layers: integers in rows, with a scale for each row, or for each block of it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import onnx_graphsurgeon as gs

import ops
from ops.array_types import QParams
from transforms.features.recurrent.operators import WEIGHTS, is_recurrent_weight
from transforms.features.recurrent.rows_writer import RowsWriter
from transforms.features.recurrent.stored_rows import StoredRows, stored_rows
from transforms.graph import walk
from transforms.graph.lazy_values import Weight
from transforms.plan.quant_spec import QuantSpec
from transforms.scheme import Scheme
from transforms.scheme.targets import FOLDING

_OF_NODES = 400
"""Approximate size in bytes of the nodes that dequantize rows."""


@dataclass(frozen=True)
class Rows:
    """The storage of W and R, see :class:`transforms.features.hooks.WeightForm`."""

    inputs: Collection[int] = WEIGHTS

    def is_weight(self, node: gs.Node, index: int) -> bool:
        """Return whether an input is W or R and stored in float."""
        return is_recurrent_weight(node, index)

    def takes(self, fmt: ops.Format | None, weight: gs.Constant, scheme: Scheme) -> bool:
        """Return whether a weight is stored in a format.

        Integers are refused if rounding is to be written as nodes, which would round in every step; for a
        target with one scale for a tensor; and where scales and nodes take more than is saved.
        """
        if fmt is None or not fmt.is_integer:
            return True
        if scheme.keep_weight_nodes or not (scheme.kernels is None or scheme.kernels.per_channel):
            return False
        rows, length = math.prod(weight.shape[:-1]), weight.shape[-1]
        return bool(rows * (4 + length * fmt.bits / 8) + _OF_NODES < 4 * rows * length)

    def grid(self, fmt: ops.Format, weight: gs.Constant, block: int, method: str) -> QuantSpec:
        """Return a grid with a scale for each row of each gate and direction.

        With blocks, a scale for each block, if a row has at least one.
        """
        axis = len(weight.shape) - 1
        size = weight.shape[axis]
        return QuantSpec(fmt, axis, fmt.is_signed, block if 0 < block <= size else size, method, form=self)

    def write(
        self,
        names: walk.Names,
        source: gs.Constant,
        integers: Weight,
        grid: tuple[QParams, int],
        target: gs.Variable,
        scheme: Scheme,
    ) -> list[gs.Node]:
        """Return the nodes that output the target; a runtime folds them, if the scheme is for one."""
        rows = RowsWriter(names, source, integers, target)
        if scheme.target in FOLDING:
            return rows.folded(*grid)
        return rows.dequantized(*grid, scheme.qdq_domain)

    def read(self, tensor: gs.Tensor) -> StoredRows | None:
        """Return the integers from which a tensor of rank 3 is dequantized, or None."""
        return stored_rows(tensor)
