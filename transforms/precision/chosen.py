"""Layers that a search has chosen: finer ones for a target, and those in float for their time."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.run.turns import Timing
from transforms.scheme import Scheme


@dataclass(frozen=True)
class Part:
    """A layer that is switched: its nodes by name, the operator of the first, and the tensor it is judged by.

    That is what a Relu or Clip makes of its output, if that alone reads it: what it cuts is not an error.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    shown: str


@dataclass(frozen=True)
class Chosen:
    """A model with some layers in a finer format; ``count``: of the layers that there are.

    ``before`` and ``after``: the metric on the samples that judge, without any of them and with these, and
    ``error`` the standard error of the latter. ``left_out``: outputs that the target does not hold for.
    """

    graph: gs.Graph
    layers: tuple[Part, ...]
    count: int
    before: float
    after: float
    error: float
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Reached(Chosen):
    """The quantized model that reaches a target; bytes: of stored numbers, without finer layers and with."""

    scheme: Scheme
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class FloatLayers:
    """The layers that are faster in float, by the first node of each; without any, no choice was faster.

    ``scheme`` names them, of ``count`` layers that are quantized. ``ratio``: of the time of the model to that
    with all of these in integers. ``more_bytes``: of stored numbers.
    """

    scheme: Scheme
    count: int
    layers: tuple[str, ...] = ()
    ratio: Timing | None = None
    more_bytes: int = 0
