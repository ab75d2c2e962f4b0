"""Results of searches: finer layers for a target, and layers in float for speed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from transforms.run.turns import Timing
from transforms.scheme import Scheme
from transforms.search.target import Scored


@dataclass(frozen=True)
class Part:
    """A layer that is switched: its nodes by name, the operator of the first, and the tensor to compare.

    ``shown``: its output, or that of a Relu or Clip that is its only consumer, which hides errors it clips.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    shown: str


@dataclass(frozen=True)
class Chosen:
    """A model with some of its ``count`` layers in a finer format.

    ``before``, ``after``: the metric on the judging samples, without finer layers and with them; ``error``:
    the standard error of ``after``. ``left_out``: outputs that do not count for the target.
    """

    graph: gs.Graph
    layers: tuple[Part, ...]
    count: int
    before: float
    after: float
    error: float
    left_out: tuple[str, ...]

    def with_layers(self, graph: gs.Graph, layers: tuple[Part, ...], count: int, scored: Scored) -> Chosen:
        """Return a copy for another model: ``layers`` of ``count`` are finer, with the metric ``scored``."""
        chosen = replace(self, graph=graph, layers=layers, count=count)
        return replace(chosen, after=scored.value, error=scored.error)


@dataclass(frozen=True)
class Reached(Chosen):
    """The quantized model that reaches a target.

    ``bytes_before``, ``bytes_after``: bytes of stored numbers without finer layers and with them.
    """

    scheme: Scheme
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class FloatLayers:
    """The layers that are faster in float, by the first node of each; empty if no choice was faster.

    ``scheme`` names them; ``count``: layers quantized before. ``ratio``: time of the model divided by that
    with all ``count`` layers in integers. ``more_bytes``: of stored numbers.
    """

    scheme: Scheme
    count: int
    layers: tuple[str, ...] = ()
    ratio: Timing | None = None
    more_bytes: int = 0


NEAR = 1.0
"""Largest loss in dB of a model for a target device against the same scheme without it that needs no note."""


@dataclass(frozen=True)
class BesidePreset:
    """SQNR in dB of a model for a target device, ``own``, and of one ``without`` it.

    Both were chosen and measured on ``samples`` samples. ``ratio``: time without the target divided by that
    of the model, None if not measured. ``is_taken``: whether the model without the target is written.
    ``found``: layers in float that made the model useful.
    """

    own: float
    without: float
    samples: int
    ratio: Timing | None = None
    is_taken: bool = False
    found: Reached | None = None

    @property
    def is_far(self) -> bool:
        """Whether the model for the target is more than ``NEAR`` dB worse."""
        return self.own < self.without - NEAR
