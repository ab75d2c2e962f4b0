"""The result of tuning: each layer, and the model with the errors of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms.judge.errors import Gain
from transforms.layers.matched_layer import MatchedLayer, SkippedLayer


@dataclass(frozen=True)
class LayerReport:
    """The result of a layer: error on held-out samples before and after, their ``power``, and the time.

    ``of_inputs``: the error with float weights. ``what``: what the layer has now, in words.
    """

    name: str
    op: str
    before: float
    after: float
    power: float
    what: str
    seconds: float
    of_inputs: float = 0.0

    @property
    def is_kept(self) -> bool:
        """Whether the layer has new weights or a new bias."""
        return self.after < self.before


@dataclass
class TunedLayers:
    """The layers in order, and those that were skipped.

    ``largest_step``: the most bytes of one sample's tensors in memory at once. ``matched``: the layers'
    places in the graph.
    """

    layers: list[LayerReport] = field(default_factory=list)
    left_alone: list[SkippedLayer] = field(default_factory=list)
    largest_step: int = 0
    matched: list[MatchedLayer] = field(default_factory=list, repr=False)

    @property
    def changed(self) -> frozenset[int]:
        """The numbers of the layers that have new weights or a new bias."""
        return frozenset(number for number, layer in enumerate(self.layers) if layer.is_kept)


@dataclass
class TunedModel:
    """The better model, the errors of its outputs on held-out samples before and after, and its layers.

    ``attempt`` names the accepted attempt, None if the model is unchanged. ``gain``: of the outputs on
    held-out samples, with all layers tuned if none was accepted. ``put_back``: numbers of layers that were
    reverted; ``blocked``: the output that regressed most with all layers tuned, None if none did.
    ``spread``: how many more tensors use the full range of int8, and ``added``: the Pads and Subs that this
    took. ``notes``: on outputs that are not compared directly. ``of_tokens``: errors are divergences of
    token probabilities, in nats per token, of the logits alone.
    """

    graph: gs.Graph
    before: float
    after: float
    attempt: str | None
    walk: TunedLayers
    gain: Gain | None = None
    put_back: frozenset[int] = frozenset()
    blocked: str | None = None
    spread: int = 0
    added: int = 0
    notes: Sequence[str] = ()
    of_tokens: bool = False
