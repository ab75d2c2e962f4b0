"""Layers that a search has chosen: finer ones for a target, and those in float for their time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from transforms.run.turns import Timing
from transforms.scheme import Scheme
from transforms.search.target import Scored


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

    def with_layers(self, graph: gs.Graph, layers: tuple[Part, ...], count: int, scored: Scored) -> Chosen:
        """Return the same with layers, of so many, in a finer format, and what is scored then."""
        found = replace(self, graph=graph, layers=layers, count=count)
        return replace(found, after=scored.value, error=scored.error)


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


NEAR = 1.0
"""dB that a model for a target may be below the same scheme without it before that is said."""


@dataclass(frozen=True)
class BesidePreset:
    """SQNR in dB of a model for the target, ``own``, and ``without`` it, on so many samples that chose both.

    ``ratio``: of the time without the target to that of the model, None if it was not measured. ``is_taken``:
    whether the model without it is written. ``found``: layers in float that made the model useful.
    """

    own: float
    without: float
    samples: int
    ratio: Timing | None = None
    is_taken: bool = False
    found: Reached | None = None

    @property
    def is_far(self) -> bool:
        """Whether the model for the target is clearly worse."""
        return self.own < self.without - NEAR
