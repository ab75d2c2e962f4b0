"""A tensor whose outlying channels can be moved into the layers that read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from transforms.graph.left_operands import rows_of
from transforms.graph.mixed_channels import Heads
from transforms.outliers.layer_error import LayerWeights
from transforms.plan.quant_spec import QuantSpec


@dataclass(frozen=True)
class Operand:
    """A computed tensor, the layers that multiply it with constant weights, and the grids of both.

    ``may_split``: whether products of single channels and their sum bring no further rounding into the model.
    ``heads``: the channels that may be mixed with each other.
    """

    tensor: gs.Tensor
    layers: tuple[gs.Node, ...]
    grid: QuantSpec
    weight_grids: tuple[QuantSpec, ...]
    may_split: bool
    heads: Heads | None = None

    @property
    def rows(self) -> list[Float32Array]:
        """The weights [channels, outputs] of the layers."""
        return [np.asarray(rows_of(node, node.inputs[1].values), np.float32) for node in self.layers]

    @cached_property
    def weights(self) -> list[LayerWeights]:
        """What errors depend on of these weights, which do not change while moves are looked for."""
        return self.measured(self.rows)

    def measured(self, rows: list[Float32Array]) -> list[LayerWeights]:
        """Return the same of weights in another form."""
        return [LayerWeights.of(*pair) for pair in zip(rows, self.weight_grids, strict=True)]
