"""A model that is run once for each feed, whatever is asked of its outputs afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from ops.array_types import Feed
from transforms.run.kept_arrays import KeptArrays
from transforms.runtime.session import OpenModel


class KeptRuns:
    """Keeps some outputs of a model for each feed; feeds may not be changed, nor let go of."""

    def __init__(self, model: OpenModel, names: Sequence[str]) -> None:
        """Take a model, and the names of the outputs that are asked for; nothing is run yet."""
        self.outputs = model.outputs
        self._model, self._names = model, [name for name in names if name in model.outputs]
        self._arrays, self._made = KeptArrays(), dict[int, Feed]()

    def run(self, feed: Feed, names: Sequence[str]) -> Feed:
        """Return the outputs of some names for a feed."""
        if id(feed) not in self._made:
            self._made[id(feed)] = self._arrays.keep(self._model.run(feed, self._names))
        return {name: self._made[id(feed)][name] for name in names}
