"""Where settings are compared: one session, the samples of both halves, and what the float model makes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array
from transforms.calibrate.calibration import Calibration
from transforms.choose_ranges.float_runs import FloatRuns, Sample
from transforms.choose_ranges.measure_outputs import Score, energies, is_hopeless, signals, sizes
from transforms.choose_ranges.parameters import Parameters, PlanOf
from transforms.choose_ranges.setting import Setting
from transforms.choose_ranges.switchable_ranges import switchable_ranges
from transforms.judge.output_views import show
from transforms.model.copy_graph import copy_graph
from transforms.plan.weight_cache import WeightMemory
from transforms.run.run_each import run_each
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme


class Bench:
    """Measures what settings do to the outputs of one model."""

    def __init__(
        self,
        graph: gs.Graph,
        scheme: Scheme,
        plan_of: PlanOf,
        calibration: Calibration,
        floats: FloatRuns,
        run: RunOptions | None,
        memory: WeightMemory,
        *,
        switches: bool = False,
    ) -> None:
        """Prepare the model. The graph is not changed.

        ``floats``: runs of it, or of another form of the same model. ``memory``: of weights of all forms.
        ``switches``: whether tensors can be left in float.
        """
        self.floats, self.memory, self._run = floats, memory, run
        self._samples: list[Sample] = []
        copy = copy_graph(graph)
        plan = plan_of(copy, scheme)
        plan.settle(calibration.extremes())
        show(copy, floats.inner)
        self.switchable = switchable_ranges(plan, switches=switches)
        self._parameters = Parameters(graph, scheme, plan_of, calibration, self.switchable, memory)

    def compare_on(self, count: int) -> None:
        """Open the model, for scores on the first samples."""
        self._samples = self.floats.samples(count)
        self._shown = self.floats.shown
        self._count = len(self.floats.outputs)
        self._signal = np.array([signals(sample.expected) for sample in self._samples])
        self._sizes = np.array([sizes(sample.expected) for sample in self._samples])
        self._model = open_model(self.switchable.graph, self.floats.options)

    @property
    def sample_count(self) -> int:
        """How many samples settings are compared on."""
        return len(self._samples)

    def score(self, setting: Setting, rival: Score | None = None) -> Score | None:
        """Return the errors of a setting: each sample with ranges from the other half.

        None if the first two samples, of which each half has one, show that it is far worse than a rival.
        """
        halves = self._halves(setting)
        first, rest = self._samples[:2], self._samples[2:]
        errors = list(run_each(lambda one: self._errors(one, halves), first, self._run))
        start = Score(np.array(errors), self._signal[:2], self._sizes[:2], self._count)
        if rival is not None and rest and is_hopeless(start, rival):
            return None
        errors += run_each(lambda one: self._errors(one, halves), rest, self._run)
        return Score(np.array(errors), self._signal, self._sizes, self._count)

    def score_without(self, setting: Setting, kept: Collection[str], count: int | None = None) -> Score:
        """Return the errors of a setting, on the first samples, if groups and constants are left in float."""
        switches = {site.switch: np.asarray(site.group in kept) for site in self.switchable.ranges}
        constants = {site.input: site.values for site in self.switchable.weights if site.tensor in kept}
        halves = [{**feed, **switches, **constants} for feed in self._halves(setting)]
        samples = self._samples[:count]
        errors = np.array(list(run_each(lambda one: self._errors(one, halves), samples, self._run)))
        return Score(errors, self._signal[:count], self._sizes[:count], self._count)

    def _halves(self, setting: Setting) -> list[Feed]:
        """Return what samples of each half are fed: ranges from the other one."""
        return [self._parameters.feed(setting, 1 - half) for half in range(2)]

    def _errors(self, sample: Sample, halves: Sequence[Feed]) -> Float64Array:
        made = self._model.run({**sample.feed, **halves[sample.half]}, self._shown)
        return energies(sample.expected, made)

    def groups_of(self, names: Collection[str]) -> list[str]:
        """Return the groups that hold one of the tensors."""
        found = (site for site in self.switchable.ranges if any(one.name in names for one in site.members))
        return list(dict.fromkeys(site.group for site in found))

    def reaching_beyond(self) -> list[str]:
        """Return the groups of tensors whose ranges reach beyond the samples if their ends tell how far."""
        return [
            group
            for group, site in {one.group: one for one in self.switchable.ranges}.items()
            if any(self._parameters.reaches_beyond(str(tensor.name), site.step) for tensor in site.members)
        ]

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
