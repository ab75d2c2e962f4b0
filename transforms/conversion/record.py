"""The record of a job: its changes, decisions and notes, for summaries, metadata and callers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from transforms.judge.decisions import Decisions
from transforms.plan.tensor_grids import TensorGrid
from transforms.scheme import Scheme

MASKED = "biases with masks, added after the layer"
"""A kind of changes: layers whose biases were parted, which formats of layers decide."""


@dataclass
class Record:
    """Quantized tensors by format and role; changes of each rewrite; notes; decisions by the outputs.

    ``calibrated``: number of tensors with ranges from samples; ``scheme``: that of the result, with nothing
    left to the outputs; ``grids``: of all tensors that became integers, if requested. ``steps``: each step
    that ran, with seconds.
    """

    tensors: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    calibrated: int = 0
    scheme: Scheme | None = None
    decisions: Decisions = field(default_factory=Decisions)
    grids: list[TensorGrid] | None = None
    steps: list[tuple[str, float]] = field(default_factory=list)

    def noted(self) -> Record:
        """Return a record with only the changes and notes so far."""
        return Record(changes=Counter(self.changes), notes=list(self.notes))

    @property
    def count(self) -> int:
        """The number of quantized tensors."""
        return sum(self.tensors.values())
