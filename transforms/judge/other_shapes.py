"""Outputs of another shape than those of the float model: in how many samples, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transforms.graph.some_names import counted, some_names


@dataclass(frozen=True)
class OtherShapes:
    """By output, in how many of ``samples`` it has another shape than in the float model.

    ``judged``: the tensors that are compared in place of an output, by its name.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    samples: int = 0
    judged: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def compared(self) -> str:
        """The tensors that are compared in place of outputs, in words; empty if there are none."""
        sources = list(dict.fromkeys(name for names in self.judged.values() for name in names))
        return f" of {some_names(sources)} before {some_names([*self.judged])}" if sources else ""

    def __str__(self) -> str:
        """Return the counts in words, empty if all shapes are the same."""
        counts = [
            f"'{name}' has another shape in {count} of {counted(self.samples, 'sample')}"
            for name, count in self.counts.items()
            if count
        ]
        return ", ".join(counts)


SAME_SHAPES = OtherShapes()
"""No other shapes: all outputs are compared themselves and have the same shapes."""
