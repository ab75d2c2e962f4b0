"""Outputs of another shape than those of the float model: in how many samples, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transforms.graph.some_names import counted, some_names


@dataclass(frozen=True)
class OtherShapes:
    """In how many of some ``samples`` outputs had another shape than those of the float model, by name.

    ``judged``: by the name of an output that is not compared itself, what of it is compared.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    samples: int = 0
    judged: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def compared(self) -> str:
        """What is compared, in words: empty for outputs themselves."""
        sources = list(dict.fromkeys(name for names in self.judged.values() for name in names))
        return f" of {some_names(sources)} before {some_names([*self.judged])}" if sources else ""

    def __str__(self) -> str:
        """The samples in words, empty where all shapes are the same."""
        said = [
            f"'{name}' has another shape in {count} of {counted(self.samples, 'sample')}"
            for name, count in self.counts.items()
            if count
        ]
        return ", ".join(said)


SAME_SHAPES = OtherShapes()
"""Outputs that are compared themselves and have the same shapes."""
