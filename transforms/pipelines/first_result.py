"""The result of the first run of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from ops.array_types import Feed
from transforms.model_io import Exported
from transforms.run.beside_float import BesideFloat
from transforms.runtime.trial import Trial

RANDOM = "random numbers"
"""Name of the feed without samples."""


@dataclass
class FirstRun:
    """The exported model and the results of its first run.

    ``why_not``: why the CPU provider does not open it; ``not_run``: why it was opened but not run.
    ``sample``: the name of the feed; ``feeds``: those of the model and of the float model; ``trial``: the
    result. ``rounded``: the result in a session in which ONNX Runtime rounds inputs of products;
    ``saturated``: where sums of 8-bit products saturate on this processor. Session options prevent the
    former, and the latter if no nodes share a weight. ``kept``: a line on each node that was left in float;
    ``wrong``: on a wrong node that was not. ``fixed``: free dimensions for which no other size was run;
    ``once``: the sizes of the only step that a large model was run for. ``time``: the timing, if any.
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
