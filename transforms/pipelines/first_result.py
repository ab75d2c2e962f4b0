"""The result of the first run of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from ops.array_types import Feed
from transforms.model_io import Exported
from transforms.run.beside_float import BesideFloat
from transforms.runtime.trial import Trial

RANDOM = "random numbers"
"""Fed where there is no sample."""


@dataclass
class FirstRun:
    """A model as it is exported, and what its first run showed.

    ``why_not``: why the CPU provider does not open it; ``not_run``: why it was only opened. ``sample``: what
    it was run on, with the result ``trial``, and ``feeds``, its own and that of the float model; ``rounded``:
    the same where ONNX Runtime rounds inputs of products, ``saturated`` where sums of 8-bit products saturate
    on this processor; session options prevent both, the second one where no nodes share a weight. ``kept``: a
    line on each node that was left in float; ``wrong``: on one that was not. ``fixed``: free sizes that were
    never other ones; ``once``: the sizes of the only step that a large model was run for. ``time``: how fast
    it is, if timed.
    """

    exported: Exported
    why_not: str | None = None
    not_run: str = ""
    sample: str = ""
    trial: Trial | None = None
    rounded: Trial | None = None
    saturated: Trial | None = None
    kept: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    once: str | None = None
    feeds: tuple[Feed, Feed] | None = field(default=None, repr=False)
    time: BesideFloat | None = None

    @property
    def has_sample(self) -> bool:
        """Whether the model was run on a sample, and not on random numbers."""
        return self.sample not in ("", RANDOM)

    @property
    def as_opened(self) -> Trial | None:
        """The result in a session without options, as users open it."""
        return self.rounded or self.saturated or self.trial
