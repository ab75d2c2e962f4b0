"""A tensor whose outlying channels can be moved into the layers that read it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph.mixed_channels import Heads
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
