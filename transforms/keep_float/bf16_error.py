"""What a conversion to BF16 costs: the SQNR of the model that would be written, on samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.convert_bf16 import Bf16Options, convert_bf16
from transforms.runtime.session import OpenModel, RunOptions, open_session
from transforms.search.output_metrics import METRICS, Outputs
from transforms.widen_bf16 import widen_bf16

Progress = Callable[[int, str], None]
"""Told how many models were measured, and the SQNR of the last in words."""


class Bf16Error:
    """Samples with the outputs of the float model; tells how far from those a conversion is.

    All float outputs of all samples count as one vector: 10 log10(sum f^2 / sum (f - q)^2), in dB.
    """

    def __init__(
        self,
        graph: gs.Graph,
        options: Bf16Options,
        feeds: Sequence[Feed],
        run: RunOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Run the float model as it was loaded, which is not changed; ValueError without a float output."""
        self.graph, self.options, self.feeds, self.run = graph, options, feeds, run
        self._progress, self._count = progress, 0
        self._known: dict[frozenset[str], float] = {}
        model = open_session(graph, run)
        self._expected = [_floats(model.run(feed)) for feed in feeds]
        if not all(self._expected):
            raise ValueError("the model has no float output to measure the SQNR of")

    def keeping(self, patterns: Iterable[str]) -> float:
        """Return the SQNR of the model with more nodes excluded, through the very code that converts.

        bfloat16 nodes run in float32 with their results rounded (:func:`transforms.widen_bf16.widen_bf16`).
        A choice that was asked for before is not converted again.
        """
        key = frozenset(patterns)
        if key not in self._known:
            graph = copy_graph(self.graph)
            convert_bf16(graph, self.options.excluding(sorted(key)))
            widen_bf16(graph)
            self._known[key] = self.of(open_session(graph, self.run))
        return self._known[key]

    def of(self, model: OpenModel, flags: Feed | None = None, every: int = 1) -> float:
        """Return the SQNR of a model on every n-th sample, fed with flags as well."""
        value = METRICS["sqnr"].score(self._pairs(model, flags or {}, every))
        self._count += 1
        if self._progress:
            self._progress(self._count, f"{value:.2f} dB")
        return value

    def _pairs(self, model: OpenModel, flags: Feed, every: int) -> Iterator[tuple[Outputs, Outputs]]:
        for feed, expected in zip(self.feeds[::every], self._expected[::every], strict=True):
            yield expected, model.run({**feed, **flags}, list(expected))


def _floats(outputs: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return the outputs that count: arrays of floats, no integers and no sequences."""
    return {
        name: value
        for name, value in outputs.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    }
