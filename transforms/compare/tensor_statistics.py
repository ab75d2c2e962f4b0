"""Statistics of every layer of a quantized model against the float model, sample by sample.

Only sums are kept, so memory depends on the models and on one sample, not on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ops.metrics import Sums
from transforms.compare.match_tensors import Match
from transforms.graph import dtypes, walk
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel, RunOptions

Feeds = Iterable[tuple[str, Mapping[str, np.ndarray]]]


@dataclass
class LayerStatistics:
    """What is known of one matched tensor over all samples.

    ``total`` compares with the float model: all errors up to here. ``own`` compares with the value before
    rounding inside the quantized model: the error of this rounding alone; it stays empty where that value
    is not at hand. ``low`` and ``high`` are the range of the float tensor. ``mismatch`` tells why the
    arrays could not be compared.
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
        self.total.add(original, rounded)
        if unrounded is not None and unrounded.shape == rounded.shape:
            self.own.add(unrounded, rounded)
        if original.size:
            self.low = min(self.low, float(original.min()))
            self.high = max(self.high, float(original.max()))


class WatchedModel:
    """A model of which inner tensors can be read; the graph it is made from must not be used any more."""

    def __init__(
        self, graph: gs.Graph, tensors: Sequence[gs.Tensor], options: RunOptions | None = None
    ) -> None:
        """Make the tensors outputs of the graph, those that are none yet, and open it."""
        self._constants = {
            t.name: t.values for t in tensors if isinstance(t, gs.Constant) and not _is_narrow(t)
        }
        names = walk.Names(graph)
        self._outputs: dict[str, str] = {}
        known = {id(tensor) for tensor in graph.outputs}
        inputs = {id(tensor) for tensor in graph.inputs}
        self._inputs = {tensor.name for tensor in tensors if id(tensor) in inputs}
        for tensor in tensors:
            if tensor.name in self._constants or tensor.name in self._inputs or tensor.name in self._outputs:
                continue
            output = tensor if id(tensor) in known else _make_output(graph, tensor, names)
            self._outputs[tensor.name] = output.name
        self.model: OpenModel = open_model(graph, options)

    def run(self, feed: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return the tensors of the names for a feed."""
        names = set(names)
        wanted = {name: self._outputs[name] for name in names if name in self._outputs}
        results = self.model.run(feed, list(wanted.values())) if wanted else {}
        found = {name: results[output] for name, output in wanted.items()}
        found |= {name: self._constants[name] for name in names if name in self._constants}
        return found | {name: feed[name] for name in names if name in self._inputs}


class SideBySide:
    """The two models side by side, ready to run samples through the matched tensors of both."""

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        matches: Sequence[Match],
        options: RunOptions | None = None,
    ) -> None:
        """Open both graphs with their matched tensors as outputs; neither may be used afterwards."""
        self._float = WatchedModel(float_graph, [match.original for match in matches], options)
        inside = [tensor for match in matches for tensor in _inside(match)]
        self._quantized = WatchedModel(quantized_graph, inside, options)

    def collect(self, matches: Sequence[Match], feeds: Feeds) -> list[LayerStatistics]:
        """Return the statistics of the matches over the feeds; weights are looked at once."""
        statistics = [LayerStatistics(match) for match in matches]
        pending = statistics
        for _, feed in feeds:
            self._add(pending, feed)
            pending = [one for one in pending if not one.match.is_weight and not one.mismatch]
        return statistics

    def arrays(
        self, matches: Sequence[Match], feed: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the matched tensors for one feed, by name: of the float model, and of the quantized one."""
        originals = self._float.run(feed, {match.original.name for match in matches})
        return originals, self._quantized.run(feed, {t.name for match in matches for t in _inside(match)})

    def _add(self, statistics: Sequence[LayerStatistics], feed: Mapping[str, np.ndarray]) -> None:
        originals, inside = self.arrays([one.match for one in statistics], feed)
        for one in statistics:
            unrounded = one.match.unrounded
            one.add(
                originals[one.match.original.name],
                inside[one.match.rounded.name],
                None if unrounded is None else inside[unrounded.name],
            )


def _inside(match: Match) -> list[gs.Tensor]:
    return [tensor for tensor in (match.rounded, match.unrounded) if tensor is not None]


def _is_narrow(tensor: gs.Tensor) -> bool:
    return dtypes.element_type(tensor) not in (dtypes.FLOAT, dtypes.FLOAT16)


def _make_output(graph: gs.Graph, tensor: gs.Tensor, names: walk.Names) -> gs.Tensor:
    """Let a tensor leave the graph, bfloat16 ones through a Cast; return the output."""
    if not dtypes.is_type(tensor, dtypes.BFLOAT16):
        graph.outputs.append(tensor)
        return tensor
    wide = dtypes.variable(names.derive(tensor.name, "watched"), dtypes.FLOAT, tensor)
    graph.nodes.append(gs.Node("Cast", wide.name, {"to": dtypes.FLOAT}, [tensor], [wide]))
    graph.outputs.append(wide)
    return wide
