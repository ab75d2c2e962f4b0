"""Run a model once for each feed, and cache some of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from ops.array_types import Feed
from transforms.run.kept_arrays import KeptArrays
from transforms.runtime.session import OpenModel


class KeptRuns:
    """Caches outputs of a model by feed; feeds must stay alive and unchanged."""

    def __init__(self, model: OpenModel, names: Sequence[str]) -> None:
        """Take a model and the names of the outputs to cache; nothing is run yet."""
        self.outputs = model.outputs
        self._model, self._names = model, [name for name in names if name in model.outputs]
        self._arrays, self._made = KeptArrays(), dict[int, Feed]()

    def run(self, feed: Feed, names: Sequence[str]) -> Feed:
        """Return the outputs with these names for a feed."""
        if id(feed) not in self._made:
            self._made[id(feed)] = self._arrays.keep(self._model.run(feed, self._names))
        return {name: self._made[id(feed)][name] for name in names}
