"""What was tried, and how good the outputs are: for the summary, the metadata of the file and reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from ops.metrics import in_decibels
from transforms.graph.some_names import counted
from transforms.judge.constants import DIVERGED
from transforms.judge.errors import Gain
from transforms.judge.other_shapes import SAME_SHAPES, OtherShapes
from transforms.model.provenance import PREFIX
from transforms.search.target import BEFORE

KEY = PREFIX + "record"
"""The entry in a file's metadata that holds a record, a line each."""

LAYERS_IN_FLOAT = "layers in float"
"""The move of layers that carry most of the loss, which have lines of their own."""

GOOD = 30
"""SQNR in dB from which on a model usually loses nothing that its users notice."""


@dataclass(frozen=True)
class Tried:
    """A candidate that was measured: what it changes, its gain over the best so far, and if it was kept.

    ``samples``: how many showed the gain.
    """

    move: str
    change: str
    gain: Gain
    kept: bool
    samples: int

    def __str__(self) -> str:
        return f"{self.move}: {self.change}: {self.gain}{', kept' if self.kept else ''}"


@dataclass(frozen=True)
class LossyLayers:
    """Layers in float that carried most of the loss, by the name of the first node, of so many layers.

    ``gain``: on samples that did not rank them; ``more``: bytes of numbers that they add, as a share.
    """

    layers: tuple[str, ...]
    count: int
    gain: Gain
    more: float


@dataclass(frozen=True)
class Checked:
    """The squared error of the outputs by their power that so many samples let expect.

    ``decided``: whether choices, or numbers of the model, were made by these; None if nothing was.
    ``folds``: in how many folds they were held out, each from the ranges of its model; 0 if they were so from
    the start. ``before_softmax``: an output that ends in a Softmax counts as what is before it.
    ``of_tokens``: of a language model, the error is the divergence of the probabilities of tokens, in nats
    for each. ``through_caches``: texts were read in two steps, the second with the caches of the first.
    ``others``: the error of as many other outputs by their power, None if there are none.
    ``decibels_error``: the error in dB of which two hold on other data, 0 where it cannot be told.
    ``same``: how many rows of a classifier have the same largest number, and of how many; None for others.
    ``channels``: those whose error it is, in words, of an output with groups of channels; ``shapes``: outputs
    of another shape. ``are_random``: samples are random tokens or numbers.
    """

    error: float
    samples: int
    decided: bool | None = None
    of_tokens: bool = False
    through_caches: bool = False
    others: float | None = None
    others_count: int = 0
    decibels_error: float = 0.0
    same: tuple[int, int] | None = None
    channels: str = ""
    shapes: OtherShapes = SAME_SHAPES
    are_random: bool = False
    folds: int = 0
    before_softmax: bool = False

    @property
    def is_diverged(self) -> bool:
        """Whether probabilities of tokens are too far from those of the float model to be of use."""
        return self.of_tokens and not self.error <= DIVERGED

    def __str__(self) -> str:
        return "; ".join(filter(None, (self._errors, str(self.shapes))))

    @property
    def _errors(self) -> str:
        if self.same is not None:
            same, rows = self.same
            unit = "sample" if rows == self.samples else "row"
            return f"{self.figure}{self._usual}; same first choice in {same} of {counted(rows, unit)}"
        if self.others is None:
            return f"{self.figure}{self._usual}"
        return f"{self.figure}; {counted(self.others_count, 'other output')} at {in_decibels(self.others)} dB"

    @property
    def figure(self) -> str:
        """The error in words, without that of other outputs."""
        if self.of_tokens:
            return f"KL divergence of {self.error:.3g} nats a token on {self.where}"
        spread = f" +- {self.decibels_error:.1f}" if self.decibels_error else ""
        before = BEFORE if self.before_softmax else ""
        worst = f" ({self.channels})" if self.channels else ""
        return (
            f"SQNR {in_decibels(self.error)}{spread} dB{before}{worst}{self.shapes.compared} on {self.where}"
        )

    @property
    def _usual(self) -> str:
        is_used = self.of_tokens or self.are_random or self.decided
        is_of_others = is_used or self.shapes.compared or str(self.shapes)
        return "" if is_of_others else f" ({GOOD} and more: usually no loss)"

    @property
    def where(self) -> str:
        """The samples, in words."""
        if self.are_random:
            return f"{counted(self.samples, 'input')} of random numbers"
        kind = "held-out sample" if self.decided is False and not self.folds else "sample"
        used = f" that {'was' if self.samples == 1 else 'were'} used" if self.decided else ""
        folds = f" held out in {counted(self.folds, 'fold')}" if self.folds else ""
        read = ", read in two steps through the caches" if self.through_caches else ""
        return f"{counted(self.samples, kind)}{used}{folds}{read}"


@dataclass
class Decisions:
    """Everything that was tried, in order, and notes on what was not; ``outputs``: how good they are.

    ``lossy``: layers in float, None if none are. ``left``: moves that no runs were left for, and their
    changes. ``fitted``: whether outputs of layers rounded weights. ``searched``: whether outputs chose
    formats of layers, or texts tuned weights.
    """

    tried: list[Tried] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lossy: LossyLayers | None = None
    outputs: Checked | None = None
    fitted: bool = False
    searched: bool = False

    @property
    def kept(self) -> list[Tried]:
        """What was kept."""
        return [one for one in self.tried if one.kept]

    def lines(self) -> list[str]:
        """Return the record in words, a line for each trial."""
        outputs = [] if self.outputs is None else [f"outputs: {self.outputs}"]
        tried = [f"{one} on {counted(one.samples, 'sample')}" for one in self.tried]
        left = [f"{': '.join(filter(None, one))}: not tried, no runs left" for one in self.left]
        return [*tried, *left, *self.notes, *outputs]

    def entries(self) -> dict[str, str]:
        """Return the record as an entry of a file's metadata; none if nothing was tried or looked at."""
        lines = self.lines()
        return {KEY: "\n".join(lines)} if lines else {}
