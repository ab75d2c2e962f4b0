"""The metric of a model on held-out samples, as recorded in its metadata and results."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from transforms.graph.some_names import counted
from transforms.model.provenance import PREFIX
from transforms.search.target import Scored

KEY = PREFIX + "metric"
"""Key of the entry in a file's metadata."""


@dataclass(frozen=True)
class MetricFigure:
    """A metric by its name in words, its value, the bound in words, and the SHA-256 of the samples."""

    name: str
    scored: Scored
    bound: str
    samples_sha256: str = ""

    @property
    def value(self) -> float:
        """The metric."""
        return self.scored.value

    @property
    def interval(self) -> tuple[float, float]:
        """The metric minus and plus its standard error."""
        return self.scored.value - self.scored.error, self.scored.value + self.scored.error

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.scored.samples

    def content(self) -> dict[str, object]:
        """Return the figure as JSON values, with infinite numbers as strings."""
        low, high = self.interval
        numbers = [number if math.isfinite(number) else str(number) for number in (self.value, low, high)]
        fields = {"name": self.name, "value": numbers[0], "interval": numbers[1:], "samples": self.samples}
        more = {"bound": self.bound, "samples_sha256": self.samples_sha256}
        return {**fields, **{key: text for key, text in more.items() if text}}

    def entries(self) -> dict[str, str]:
        """Return the entry of the metadata."""
        return {KEY: json.dumps(self.content())}

    def __str__(self) -> str:
        low, high = self.interval
        text = f"{self.name} {self.value:.4g} ({low:.4g} to {high:.4g}) on {counted(self.samples, 'sample')}"
        return f"{text}, to be {self.bound}" if self.bound else text
