"""The bench that decides: samples, what the float model makes of them, and the metric of a target on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.metrics import without_row_means
from transforms.full_range.recorded_shifts import shifts_within
from transforms.graph.output_view import output_view
from transforms.graph.state_outputs import found_pairs
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import RunOptions
from transforms.search.output_metrics import METRICS, OutputsPair, least_sqnr, lost_top1
from transforms.search.target import LOST_TOP1, Target

Progress = Callable[[int, str], None]
"""Told how many models were measured, and what the last one reached, in words."""


class Bench:
    """Samples that judge, with what the float model makes of them.

    The target holds for each output. Of a model that makes logits, caches are left out, whose numbers these
    are made of; of a share of rows, outputs that are fed back: a state has no answer in a row.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        feeds: Sequence[Feed],
        target: Target,
        run: RunOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Take feeds; ValueError for a model without an output of a floating type."""
        self._judge, self.target, self._progress = Judge(float_graph, feeds, run), target, progress
        outputs = self._judge.reference.outputs
        if not outputs:
            raise ValueError("the model has no output of a floating type to hold to a target")
        states = set(found_pairs(float_graph).values()) if target.metric == LOST_TOP1 else ()
        self.names = [name for name in outputs if name not in states] or outputs
        caches = output_view(float_graph).caches
        self.left_out = tuple(
            str(one.name)
            for one in float_graph.outputs
            if one.name in caches or (one.name in outputs and one.name not in self.names)
        )
        self._samples, self._count = self._judge.reference.samples(self._judge.count), 0

    def compare_only(self, names: Collection[str]) -> None:
        """Compare what other models have, too: not all have each tensor that stands for an output.

        Raises ValueError where nothing is left.
        """
        self.names = [name for name in self.names if name in names]
        if not self.names:
            raise ValueError("numbers decide how many rows the outputs have, and nothing else is compared")

    def score(self, graph: gs.Graph) -> float:
        """Return the metric of a quantized model, which stays as it is."""
        run = self._judge.opened(copy_graph(graph), shifts_within(graph))
        logits = self._judge.reference.logits
        missing = {name: np.zeros(0, np.float32) for name in self.names}  # counts as another shape

        def _pairs() -> Iterator[OutputsPair]:
            for sample in self._samples:
                made = {**missing, **run(sample.feed)}
                expected, found = outputs_of(self.names, sample.expected), outputs_of(self.names, made)
                yield without_row_means(expected, logits), without_row_means(found, logits)

        value = score(self.target, _pairs())
        self._count += 1
        if self._progress:
            self._progress(self._count, self.target.text(value))
        return value


def score_of(
    graph: gs.Graph,
    float_graph: gs.Graph,
    feeds: Sequence[Feed],
    target: Target,
    run: RunOptions | None = None,
) -> float:
    """Return the metric of a target of a quantized model, which stays as it is, on some feeds."""
    return Bench(float_graph, feeds, target, run).score(graph)


def score(target: Target, pairs: Iterable[OutputsPair]) -> float:
    """Return the metric of a target over samples; the SQNR is that of the worst output."""
    if target.metric == "sqnr":
        return least_sqnr(pairs)
    return METRICS[target.metric].score(pairs) if target.metric in METRICS else lost_top1(pairs)


def outputs_of(names: Sequence[str], made: Feed) -> Feed:
    """Return the outputs of these names, as far as they are there."""
    return {name: made[name] for name in names if name in made}
