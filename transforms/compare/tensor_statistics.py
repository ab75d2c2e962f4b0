"""Statistics of every layer of a quantized model against the float model, sample by sample.

Only sums are kept, so memory depends on the models and on one sample, not on the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ops.metrics import Sums, without_row_means
from transforms.compare.match_tensors import Match
from transforms.compare.stored_tensors import StoredTensors, open_shown
from transforms.graph.embeddings import logits_of
from transforms.run.instrumented_model import InstrumentedModel
from transforms.runtime.session import RunOptions

Feeds = Iterable[tuple[str, Mapping[str, np.ndarray]]]


@dataclass
class LayerStatistics:
    """Statistics of one matched tensor over all samples.

    ``total`` compares with the float model: all errors up to here. ``own`` compares with the value before
    rounding inside the quantized model: the error of this rounding alone; it stays empty if that value is
    not accessible. ``low`` and ``high`` are the range of the float tensor. ``mismatch`` tells why the arrays
    could not be compared.
    """

    match: Match
    total: Sums = field(default_factory=Sums)
    own: Sums = field(default_factory=Sums)
    low: float = math.inf
    high: float = -math.inf
    mismatch: str = ""

    def add(self, original: np.ndarray, rounded: np.ndarray, unrounded: np.ndarray | None) -> None:
        """Add the arrays of one sample."""
        if original.shape != rounded.shape:
            self.mismatch = (
                f"shape {list(original.shape)} in the float model, {list(rounded.shape)} in the other"
            )
            return
        if self.match.limits is not None:
            low, high = self.match.limits
            original, rounded = np.clip(original, low, high), np.clip(rounded, low, high)
            unrounded = None if unrounded is None else np.clip(unrounded, low, high)
        self.total.add(original, rounded)
        if unrounded is not None and unrounded.shape == rounded.shape:
            self.own.add(unrounded, rounded)
        if original.size:
            self.low = min(self.low, float(original.min()))
            self.high = max(self.high, float(original.max()))


class SideBySide:
    """Runs samples through the matched tensors of two models."""

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        matches: Sequence[Match],
        options: RunOptions | None = None,
    ) -> None:
        """Open both graphs so that they show their matched tensors; neither may be used afterwards."""
        self._logits = logits_of(float_graph)
        weights = [match for match in matches if match.is_weight]
        self._stored = (
            StoredTensors(float_graph, [match.original for match in weights], options),
            StoredTensors(quantized_graph, [name for match in weights for name in _inside(match)], options),
        )
        computed = [match for match in matches if not self._is_stored(match)]
        self._float = _open(float_graph, [match.original for match in computed], options)
        self._quantized = _open(quantized_graph, [n for match in computed for n in _inside(match)], options)

    def collect(self, matches: Sequence[Match], feeds: Feeds) -> list[LayerStatistics]:
        """Return the statistics of the matches over the feeds; weights are read once."""
        statistics = [LayerStatistics(match) for match in matches]
        for layer in statistics:
            if arrays := self.stored(layer.match):
                layer.add(*arrays)
        pending = [layer for layer in statistics if not self._is_stored(layer.match)]
        for _, feed in feeds:
            originals, inside = self.arrays([layer.match for layer in pending], feed)
            for layer in pending:
                match = layer.match
                unrounded = None if match.unrounded is None else inside[match.unrounded]
                layer.add(originals[match.original], inside[match.rounded], unrounded)
            pending = [layer for layer in pending if not layer.match.is_weight and not layer.mismatch]
        return statistics

    def stored(self, match: Match) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
        """Return original, rounded and unrounded of a match that depends on no sample, or None."""
        if not self._is_stored(match):
            return None
        originals, inside = self._stored
        unrounded = None if match.unrounded is None else inside.load(match.unrounded)
        return originals.load(match.original), inside.load(match.rounded), unrounded

    def _is_stored(self, match: Match) -> bool:
        originals, inside = self._stored
        return match.original in originals and all(name in inside for name in _inside(match))

    def arrays(
        self, matches: Sequence[Match], feed: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return tensors for one feed, by name: of the float model, and of the quantized one without shifts.

        The matches must not be ``stored`` ones; logits lack the mean of each row.
        """
        originals = self._float.run(feed, [match.original for match in matches])
        inside = self._quantized.run(feed, [name for match in matches for name in _inside(match)])
        logits = {name for match in matches if match.original in self._logits for name in _inside(match)}
        originals, inside = without_row_means(originals, self._logits), without_row_means(inside, logits)
        shifts = {name: match.shift for match in matches if match.shift for name in _inside(match)}
        inside |= {name: inside[name] + np.float32(shift) for name, shift in shifts.items()}
        return originals, inside


def _inside(match: Match) -> list[str]:
    return [match.rounded, *([] if match.unrounded is None else [match.unrounded])]


def _open(graph: gs.Graph, names: Sequence[str], options: RunOptions | None) -> InstrumentedModel[str]:
    """Open a model that shows tensors and its outputs."""
    return open_shown(graph, [*(tensor.name for tensor in graph.outputs), *names], options)
