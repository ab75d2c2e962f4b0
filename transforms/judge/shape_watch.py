"""Compare the shapes of outputs with those of the float model while models run."""

from __future__ import annotations

import numpy as np

from ops.array_types import Feed
from transforms.judge.other_shapes import OtherShapes
from transforms.judge.reference import Reference


def same_shapes(expected: Feed, outputs: Feed) -> bool:
    """Return whether outputs contain all expected arrays in the same shapes."""
    return all(name in outputs and np.shape(outputs[name]) == array.shape for name, array in expected.items())


class ShapeWatch:
    """Compares the shapes of outputs with those of the float model, for each feed of a reference."""

    def __init__(self, reference: Reference) -> None:
        """Take the reference whose feeds are watched."""
        self._reference, self._shapes = reference, dict[int, dict[str, tuple[int, ...]]]()

    def see(self, feed: Feed, made: Feed) -> None:
        """Keep the shapes of the outputs ``made`` for a feed."""
        arrays = (name for name in self._reference.judged if isinstance(made.get(name), np.ndarray))
        self._shapes[id(feed)] = {name: made[name].shape for name in arrays}

    def differing(self) -> list[list[str]]:
        """Return, for each feed, the names of the outputs that have another shape."""
        reference = self._reference
        pairs = zip(reference.feeds, reference.made([*reference.judged]), strict=True)
        return [
            [
                name
                for name, array in expected.items()
                if (shape := self._shapes.get(id(feed), {}).get(name)) is not None and shape != array.shape
            ]
            for feed, expected in pairs
        ]

    def found(self) -> OtherShapes:
        """Return the counts of other shapes by output."""
        differing, judged = self.differing(), self._reference.judged
        counts = {name: sum(name in names for names in differing) for name in judged}
        replaced = {name: names for name, names in judged.items() if names and [*names] != [name]}
        return OtherShapes(counts, len(differing), replaced)
