"""Where settings are compared: one session, the samples of both halves, and what the float model makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array
from transforms.calibrate.calibrate import Calibration
from transforms.choose_ranges.measure_outputs import Score, energies, signals
from transforms.choose_ranges.output_views import before_saturation
from transforms.choose_ranges.parameters import Parameters, PlanOf
from transforms.choose_ranges.setting import Setting
from transforms.choose_ranges.switchable_ranges import switchable_ranges
from transforms.model.copy_graph import copy_graph
from transforms.run.instrumented_model import float_outputs
from transforms.run.run_each import run_each, with_fixed_threads
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme


@dataclass(frozen=True)
class Sample:
    """A sample, the half that it belongs to, and what the float model makes of it."""

    half: int
    feed: Feed
    expected: Feed


class Bench:
    """Measures what settings do to the outputs of one model."""

    def __init__(
        self,
        graph: gs.Graph,
        scheme: Scheme,
        plan_of: PlanOf,
        calibration: Calibration,
        feeds: Sequence[tuple[int, Feed]],
        run: RunOptions | None,
    ) -> None:
        """Open the model; ``feeds``: samples with their halves. The graph is not changed."""
        self._run = run
        fixed = replace(with_fixed_threads(run), simulate=True, prepack=False)
        views = before_saturation(graph)
        self._shown = [*dict.fromkeys((*float_outputs(graph), *views))]
        self._count = len(self._shown) - len([name for name in views if name not in float_outputs(graph)])
        copy = copy_graph(graph)
        _show(copy, views)
        made = open_model(copy, fixed)
        outputs = run_each(lambda one: made.run(one[1], self._shown), feeds, run)
        self._samples = [
            Sample(half, feed, found) for (half, feed), found in zip(feeds, outputs, strict=True)
        ]
        copy = copy_graph(graph)
        plan = plan_of(copy, scheme)
        _show(copy, views)
        self.switchable = switchable_ranges(plan)
        self._parameters = Parameters(graph, scheme, plan_of, calibration, self.switchable)
        self._model = open_model(self.switchable.graph, fixed)
        self._signal = np.array([signals(sample.expected) for sample in self._samples])
        self._known: dict[str, Score] = {}

    def score(self, setting: Setting) -> Score:
        """Return the errors of a setting: each sample with ranges from the other half."""
        halves = [self._parameters.feed(setting, 1 - half) for half in range(2)]

        def _errors(sample: Sample) -> Float64Array:
            made = self._model.run({**sample.feed, **halves[sample.half]}, self._shown)
            return energies(sample.expected, made)

        errors = np.array(list(run_each(_errors, self._samples, self._run)))
        return Score(errors, self._signal, self._count)


def _show(graph: gs.Graph, views: Sequence[str]) -> None:
    """Make tensors outputs of a graph."""
    known = {tensor.name for tensor in graph.outputs}
    made = {tensor.name: tensor for node in graph.nodes for tensor in node.outputs}
    graph.outputs += [made[name] for name in views if name not in known]
