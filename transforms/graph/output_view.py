"""Which outputs of models are compared, and how: logits without the row mean, and no caches beside them.

Caches only matter through the logits. All other outputs are compared, also states, which a user may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.metrics import without_row_means
from transforms.graph.embeddings import logits_of
from transforms.graph.state_outputs import cache_outputs


@dataclass(frozen=True)
class OutputView:
    """How the outputs of a model are compared: ``logits`` without the mean of each row, no ``caches``.

    Caches are outputs that are fed back, and from whose values the logits are computed. A model without
    logits has none here: its states are results like others.
    """

    logits: frozenset[str] = frozenset()
    caches: frozenset[str] = frozenset()

    def counted(self, names: Iterable[str]) -> list[str]:
        """Return the names that are compared; if there are only caches, all."""
        names = list(names)
        return [name for name in names if name not in self.caches] or names

    def of(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the compared arrays in the form in which they are compared."""
        return without_row_means({name: arrays[name] for name in self.counted(arrays)}, self.logits)


ALL = OutputView()
"""The view of a model without logits."""


def output_view(graph: gs.Graph) -> OutputView:
    """Return how the outputs of a float model are compared."""
    logits = logits_of(graph)
    return OutputView(logits, frozenset(cache_outputs(graph, logits)))
