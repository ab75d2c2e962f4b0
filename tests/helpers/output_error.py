"""Errors of a model's outputs beside those of the float model, sample by sample, as an oracle of tests.

An output after a final Softmax is measured before it, since probabilities hide errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray, Feed, Float64Array
from ops.metrics import sums_of_numbers
from transforms.all_codes.recorded_shifts import shifts_within
from transforms.graph import walk
from transforms.graph.number_shapes import judged_tensors
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.run_each import with_fixed_threads
from transforms.runtime.session import RunOptions


@dataclass(frozen=True)
class Errors:
    """Squared errors of outputs on samples, and the powers of the float outputs, both [samples, outputs]."""

    errors: Float64Array
    powers: Float64Array

    @property
    def relative(self) -> float:
        """The mean over outputs of error divided by power, over all samples."""
        errors, powers = self.errors.sum(0), self.powers.sum(0)
        with np.errstate(all="ignore"):
            return float(np.where(errors == 0, 0.0, errors / powers).mean())

    def of(self, samples: NDArray[np.bool_]) -> Errors:
        """Return the errors on some of the samples."""
        return Errors(self.errors[samples], self.powers[samples])


class OutputError:
    """The error of models on some samples."""

    def __init__(
        self, float_graph: gs.Graph, feeds: Sequence[Feed], options: RunOptions | None = None
    ) -> None:
        """Run the float model."""
        self._feeds, self._options = feeds, with_fixed_threads(options)
        judged = judged_tensors(float_graph)
        self._names = list(dict.fromkeys(name for names in judged.values() for name in names))
        self._expected = self._run(float_graph)

    def each(self, graph: gs.Graph) -> Errors:
        """Return the errors of a model with the same inputs and outputs."""
        pairs = zip(self._expected, self._run(graph), strict=True)
        found = np.array([[_compare(*pair) for pair in zip(*two, strict=True)] for two in pairs], np.float64)
        return Errors(found[..., 0], found[..., 1])

    def _run(self, graph: gs.Graph) -> list[list[AnyArray]]:
        shown = [_before_softmax(graph, name) for name in self._names]
        own = [str(tensor.name) for tensor in graph.outputs]
        model = InstrumentedModel(graph, [*own, *shown], self._options)
        back = {name: np.float32(shift) for name, shift in shifts_within(graph).items() if name not in own}
        runs = (model.run(feed, shown=shown) for feed in self._feeds)
        return [[made[name] + back[name] if name in back else made[name] for name in shown] for made in runs]


def _before_softmax(graph: gs.Graph, name: str) -> str:
    node = next((node for node in graph.nodes if any(tensor.name == name for tensor in node.outputs)), None)
    while node is not None and (node.op in ("Reshape", "Flatten") or "quantize" in node.op.lower()):
        node = walk.producer(node.inputs[0])
    return str(node.inputs[0].name) if node is not None and node.op == "Softmax" else name


def _compare(expected: AnyArray, found: AnyArray) -> tuple[float, float]:
    if expected.shape != found.shape:
        return np.inf, 1.0
    if expected.dtype.kind != "f":
        return float((expected != found).sum()), float(expected.size)
    sums = sums_of_numbers(expected, found)
    return sums.error_energy, sums.baseline_energy
