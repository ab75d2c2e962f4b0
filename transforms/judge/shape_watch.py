"""The shapes of outputs beside those of the float model, while models run."""

from __future__ import annotations

import numpy as np

from ops.array_types import Feed
from transforms.judge.other_shapes import OtherShapes
from transforms.judge.reference import Reference


def same_shapes(expected: Feed, made: Feed) -> bool:
    """Return whether all arrays that are expected were made in their shapes."""
    return all(name in made and np.shape(made[name]) == array.shape for name, array in expected.items())


class ShapeWatch:
    """Compares the shapes of outputs with those of the float model, for each feed of a reference."""

    def __init__(self, reference: Reference) -> None:
        """Compare nothing yet."""
        self._reference, self._shapes = reference, dict[int, dict[str, tuple[int, ...]]]()

    def see(self, feed: Feed, made: Feed) -> None:
        """Keep the shapes of what was made of a feed."""
        outputs = (name for name in self._reference.judged if isinstance(made.get(name), np.ndarray))
        self._shapes[id(feed)] = {name: made[name].shape for name in outputs}

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
        """Return what is to be said of the shapes."""
        differing, judged = self.differing(), self._reference.judged
        counts = {name: sum(name in names for names in differing) for name in judged}
        others = {name: names for name, names in judged.items() if names and [*names] != [name]}
        return OtherShapes(counts, len(differing), others)
