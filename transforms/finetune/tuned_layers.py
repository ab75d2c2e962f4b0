"""What became of the layers of a model that was tuned."""

from __future__ import annotations

from dataclasses import dataclass, field

from transforms.finetune.options import TuneOptions
from transforms.finetune.tune_layer import LayerSolution, is_offered
from transforms.layers.matched_layer import MatchedLayer, SkippedLayer


@dataclass(frozen=True)
class LayerReport:
    """The result of a layer: error on held-out samples before and after, their ``power``, and the time.

    ``of_inputs``: the error that float weights would leave. ``what`` the layer has now, and what was ``best``
    for it alone, which was not kept where users of a shared weight or the model's outputs became worse.
    """

    name: str
    op: str
    before: float
    after: float
    power: float
    what: str
    seconds: float
    of_inputs: float = 0.0
    best: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the layer has new weights or a new bias."""
        return self.after < self.before


Unlearned = dict[int, tuple[LayerSolution, LayerReport]]
"""By number what layers with learned roundings would have without, and how it would be reported."""


@dataclass
class TunedLayers:
    """The layers in order, and those that were skipped.

    ``largest_step``: the most bytes of tensors of one sample that were in memory at once. ``matched``: where
    the layers are in the graph. ``unlearned``: those with learned roundings, without.
    """

    layers: list[LayerReport] = field(default_factory=list)
    left_alone: list[SkippedLayer] = field(default_factory=list)
    largest_step: int = 0
    matched: list[MatchedLayer] = field(default_factory=list, repr=False)
    unlearned: Unlearned = field(default_factory=dict, repr=False)

    @property
    def changed(self) -> frozenset[int]:
        """The numbers of the layers that have new weights or a new bias."""
        return frozenset(number for number, layer in enumerate(self.layers) if layer.is_kept)

    def are_those_of(self, options: TuneOptions) -> bool:
        """Return whether options that offer less than those of this walk lead to the same layers.

        So they do if each layer chose what they offer: the first has the same sums, and makes the same
        choice, and so have those after it.
        """
        return all(is_offered(layer.best, options) for layer in self.layers)
