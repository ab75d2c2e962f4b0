"""The record of candidates and of the error of the outputs, for the summary, metadata and reports."""

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
"""Key of the record in a file's metadata, a line for each candidate."""

LAYERS_IN_FLOAT = "layers in float"
"""Name of the move that leaves lossy layers in float."""

GOOD = 30
"""SQNR in dB at which a model usually loses nothing that its users notice."""


@dataclass(frozen=True)
class Tried:
    """A candidate that was measured: its change, its gain over the best so far, and whether it was kept.

    ``samples``: the number of samples of the gain.
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
    """Layers left in float that carried most of the loss, by the name of the first node, out of ``count``.

    ``gain``: on samples that did not rank them. ``more``: the bytes they add, as a share of all numbers.
    """

    layers: tuple[str, ...]
    count: int
    gain: Gain
    more: float


@dataclass(frozen=True)
class Checked:
    """The relative squared error of the outputs, ``error``, as expected on other data, from ``samples``.

    ``decided``: whether these samples decided about the model or gave its numbers; None if no samples did.
    ``folds``: the number of folds in which they were held out from the ranges of the model; 0 if they were
    held out from the start. ``before_softmax``: outputs that end in a Softmax are compared before it.
    ``of_tokens``: of a language model, whose error is the KL divergence of the probabilities of tokens, in
    nats per token. ``through_caches``: texts were read in two steps, the second with the caches of the first.
    ``others``: the relative squared error of ``others_count`` other outputs, None if there are none.
    ``decibels_error``: the error in dB of which two usually cover other data; 0 if it is not known.
    ``same``: the number of rows in which a classifier has the same first choice, and of all rows; None for
    other models. ``channels``: in words, those of the error, for outputs with groups of channels. ``shapes``:
    outputs of another shape. ``are_random``: samples are random tokens or numbers.
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
        """The error in words, without that of ``others``."""
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
    """All candidates that were tried, in order, notes, and the error of the final ``outputs``.

    ``lossy``: lossy layers left in float, None if there are none. ``left``: moves and changes that were
    skipped because the runs were used up. ``fitted``: whether weights were fitted to outputs of layers.
    ``searched``: whether outputs chose formats of layers, or texts tuned weights.
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
        """The candidates that were kept."""
        return [trial for trial in self.tried if trial.kept]

    def lines(self) -> list[str]:
        """Return the record in words, a line for each trial."""
        outputs = [] if self.outputs is None else [f"outputs: {self.outputs}"]
        tried = [f"{trial} on {counted(trial.samples, 'sample')}" for trial in self.tried]
        left = [f"{': '.join(filter(None, trial))}: not tried, no runs left" for trial in self.left]
        return [*tried, *left, *self.notes, *outputs]

    def entries(self) -> dict[str, str]:
        """Return the record as an entry of a file's metadata; empty if there is nothing to record."""
        lines = self.lines()
        return {KEY: "\n".join(lines)} if lines else {}
