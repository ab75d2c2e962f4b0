"""How far the outputs of a quantized model are from those of the float model, in one number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms import graph_proto
from transforms.light_session import LightModel, open_light
from transforms.run_model import RunOptions

Feed = Mapping[str, np.ndarray]


class OutputError:
    """The error of models on some samples, relative to the outputs of the float model.

    For each float output it is sum (f - q)^2 / sum f^2 over all samples, for others the share of elements
    that differ; the mean of all outputs counts, or that of one, by its index.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        feeds: Sequence[Feed],
        output_index: int | None = None,
        options: RunOptions | None = None,
    ) -> None:
        """Run the float model; ValueError for an output that is not there."""
        self._feeds, self._options = feeds, options
        names = [tensor.name for tensor in float_graph.outputs]
        if output_index is not None and not 0 <= output_index < len(names):
            raise ValueError(
                f"output {output_index} is not there, the model has {len(names)}, the first is 0"
            )
        self._names = names if output_index is None else [names[output_index]]
        self._wanted = list(self._run(float_graph))

    def of(self, graph: gs.Graph) -> float:
        """Return the error of a model with the same inputs and outputs; infinity where it is no number."""
        errors = np.zeros(len(self._names))
        powers = np.zeros(len(self._names))
        for wanted, found in zip(self._wanted, self._run(graph), strict=True):
            for i, (f, q) in enumerate(zip(wanted, found, strict=True)):
                error, power = _compare(f, q)
                errors[i] += error
                powers[i] += power
        with np.errstate(all="ignore"):
            relative = np.where(errors == 0, 0.0, errors / powers)
        mean = float(relative.mean())
        return mean if np.isfinite(mean) else np.inf

    def _run(self, graph: gs.Graph) -> Iterator[list[NDArray[np.generic]]]:
        model = _open(graph, self._options)
        for feed in self._feeds:
            found = model.run(feed, self._names)
            yield [found[name] for name in self._names]


def _open(graph: gs.Graph, options: RunOptions | None) -> LightModel:
    return open_light(*graph_proto.export_light(graph), options)


def _compare(wanted: NDArray[np.generic], found: NDArray[np.generic]) -> tuple[float, float]:
    if wanted.shape != found.shape:
        return np.inf, 1.0
    if wanted.dtype.kind != "f":
        return float((wanted != found).sum()), float(wanted.size)
    f, q = wanted.astype(np.float64), found.astype(np.float64)
    return float(((f - q) ** 2).sum()), float((f * f).sum())
