"""What a float model makes of samples, to which outputs of quantized models are compared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array
from transforms.choose_ranges.measure_outputs import Score, energies, signals
from transforms.choose_ranges.output_views import before_saturation, show
from transforms.model.copy_graph import copy_graph
from transforms.run.run_each import run_each, with_bounded_memory, with_fixed_threads
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.search.output_metrics import is_float_array


class JudgedOutputs:
    """The outputs of a float model, and what they saturate, on some samples."""

    def __init__(self, float_graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions | None) -> None:
        """Run the float model, which is not changed."""
        self._feeds, self._run = feeds, run
        self._views = list(before_saturation(float_graph))
        made = _outputs(copy_graph(float_graph), self._views, feeds, run)
        floats = [name for name, array in made[0].items() if is_float_array(array)]
        ends = {tensor.name for tensor in float_graph.outputs}
        names = sorted(floats, key=lambda name: name not in ends)
        self.count = sum(name in ends for name in names)
        """How many outputs are of a floating type."""
        self._wanted = [{name: one[name] for name in names} for one in made]
        self._signal = np.array([signals(one) for one in self._wanted])

    def score(self, graph: gs.Graph, places: slice = slice(None)) -> Score:
        """Return the errors of a model, which may not be used afterwards, on some of the samples."""
        feeds, wanted = self._feeds[places], self._wanted[places]
        made = _outputs(graph, self._views, feeds, self._run)
        errors = np.array([energies(*pair) for pair in zip(wanted, made, strict=True)], np.float64)
        return Score(errors, self._signal[places], self.count)


def together(scores: Sequence[Score]) -> Score:
    """Return the score of several groups of samples as one."""
    errors: list[Float64Array] = [one.errors for one in scores]
    return Score(np.concatenate(errors), np.concatenate([one.signal for one in scores]), scores[0].count)


def _outputs(
    graph: gs.Graph, views: Collection[str], feeds: Sequence[Feed], run: RunOptions | None
) -> list[Feed]:
    """Return outputs and views of a graph, which may not be used afterwards, on each sample."""
    show(graph, views)
    options = with_bounded_memory(with_fixed_threads(run), feeds)
    options = replace(options, simulate=True, prepack=False)
    return list(run_each(open_model(graph, options).run, feeds, run))
