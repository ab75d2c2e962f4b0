"""What became of the layers of a model that was tuned."""

from __future__ import annotations

from dataclasses import dataclass, field

from transforms.layers.matched_layer import MatchedLayer, SkippedLayer


@dataclass(frozen=True)
class LayerReport:
    """The result of a layer: error on held-out samples before and after, their ``power``, and the time.

    ``of_inputs``: the error that float weights would leave. ``what`` the layer has now.
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

    ``largest_step``: the most bytes of tensors of one sample that were in memory at once. ``matched``: where
    the layers are in the graph.
    """

    layers: list[LayerReport] = field(default_factory=list)
    left_alone: list[SkippedLayer] = field(default_factory=list)
    largest_step: int = 0
    matched: list[MatchedLayer] = field(default_factory=list, repr=False)

    @property
    def changed(self) -> frozenset[int]:
        """The numbers of the layers that have new weights or a new bias."""
        return frozenset(number for number, layer in enumerate(self.layers) if layer.is_kept)
