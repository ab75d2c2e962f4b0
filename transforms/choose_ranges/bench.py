"""Where settings are compared: one session, the samples of both halves, and what the float model makes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array
from transforms.calibrate.calibration import Calibration
from transforms.choose_ranges.measure_outputs import Score, energies, is_hopeless, signals
from transforms.choose_ranges.output_views import before_saturation, show
from transforms.choose_ranges.parameters import Parameters, PlanOf
from transforms.choose_ranges.setting import Setting
from transforms.choose_ranges.switchable_ranges import switchable_ranges
from transforms.model.copy_graph import copy_graph
from transforms.run.kept_arrays import KeptArrays
from transforms.run.run_each import run_each, with_bounded_memory, with_fixed_threads
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.search.output_metrics import is_float_array


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
        like: Bench | None = None,
    ) -> None:
        """Open the model; ``feeds``: samples with their halves. The graph is not changed.

        ``like``: that of another form of the same model, with the same samples, which were run there.
        """
        self._run = run
        fixed = replace(with_fixed_threads(run), simulate=True, prepack=False)
        fixed = with_bounded_memory(fixed, [feed for _, feed in feeds])
        views = before_saturation(graph)
        self._views: Collection[str] = views.keys()
        self.outputs: list[str] = []
        self._shown: list[str] = []
        self._samples: list[Sample] = []
        if like is None or self._views != like._views:
            self._look(graph, views, feeds, fixed)
        else:
            self.outputs, self._shown, self._samples = like.outputs, like._shown, like._samples
        copy = copy_graph(graph)
        plan = plan_of(copy, scheme)
        show(copy, views)
        self.switchable = switchable_ranges(plan)
        self._parameters = Parameters(graph, scheme, plan_of, calibration, self.switchable)
        self._model = open_model(self.switchable.graph, fixed)
        self._signal = np.array([signals(sample.expected) for sample in self._samples])

    def _look(
        self,
        graph: gs.Graph,
        views: Mapping[str, str],
        feeds: Sequence[tuple[int, Feed]],
        fixed: RunOptions,
    ) -> None:
        """Run the float model."""
        copy = copy_graph(graph)
        show(copy, views)
        model, kept = open_model(copy, fixed), KeptArrays()
        made = list(run_each(lambda one: kept.keep(model.run(one[1])), feeds, self._run))
        floats = [name for name, array in made[0].items() if is_float_array(array)]
        ends = {tensor.name for tensor in graph.outputs}
        self.outputs = [name for name in floats if name in ends]
        self._shown = [*self.outputs, *(name for name in floats if name not in ends)]
        self._samples = [
            Sample(half, feed, {name: found[name] for name in self._shown})
            for (half, feed), found in zip(feeds, made, strict=True)
        ]

    def keep(self, count: int) -> None:
        """Go on with the first samples."""
        self._samples, self._signal = self._samples[:count], self._signal[:count]

    def score(self, setting: Setting, rival: Score | None = None) -> Score | None:
        """Return the errors of a setting: each sample with ranges from the other half.

        None if the first two samples, of which each half has one, show that it is far worse than a rival.
        """
        halves = [self._parameters.feed(setting, 1 - half) for half in range(2)]

        def _errors(sample: Sample) -> Float64Array:
            made = self._model.run({**sample.feed, **halves[sample.half]}, self._shown)
            return energies(sample.expected, made)

        first, rest = self._samples[:2], self._samples[2:]
        errors = list(run_each(_errors, first, self._run))
        start = Score(np.array(errors), self._signal[:2], len(self.outputs))
        if rival is not None and rest and is_hopeless(start, rival):
            return None
        errors += run_each(_errors, rest, self._run)
        return Score(np.array(errors), self._signal, len(self.outputs))

    def groups_of(self, names: Collection[str]) -> list[str]:
        """Return the groups that hold one of the tensors."""
        found = (site for site in self.switchable.ranges if any(one.name in names for one in site.members))
        return list(dict.fromkeys(site.group for site in found))

    def members(self, group: str) -> list[str]:
        """Return the tensors that share the scale of a group."""
        found = next(site.members for site in self.switchable.ranges if site.group == group)
        return [str(tensor.name) for tensor in found]

    def is_same(self, one: Setting, other: Setting) -> bool:
        """Return whether two settings that differ in kinds of weights come to the same weights."""
        if replace(one, kind=other.kind, kinds=other.kinds) != other:
            return False
        first, second = (self._parameters.weights(setting) for setting in (one, other))
        return all(np.array_equal(array, second[name]) for name, array in first.items())
