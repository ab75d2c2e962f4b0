"""What a setting feeds to a model with inputs for scales, zero points, weights and biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed, QParams
from ops.integers import range_scale
from transforms.calibrate.calibration import Calibration, options_of
from transforms.calibrate.methods import CalibrationOptions, choose_range
from transforms.choose_ranges.setting import EXTRAPOLATED, Setting, WeightKind
from transforms.judge.switchable_ranges import BiasSite, RangeSite, SwitchableRanges, WeightSite
from transforms.graph import walk
from transforms.plan.bias_correction import corrected, corrected_inputs
from transforms.plan.fake_quant import FakeQuant, fake_quants
from transforms.plan.qparams import shared_range
from transforms.plan.quant_spec import QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme import Scheme
from transforms.scheme.scheme import POWER_OF_TWO

PlanOf = Callable[[gs.Graph, Scheme], QuantizationPlan]


class Parameters:
    """The feeds of settings, each array made once."""

    def __init__(
        self,
        graph: gs.Graph,
        scheme: Scheme,
        plan_of: PlanOf,
        calibration: Calibration,
        switchable: SwitchableRanges,
        memory: WeightMemory,
    ) -> None:
        """Take the float graph, and the inputs that were made for a copy of it."""
        self._graph, self._scheme, self._plan_of = graph, scheme, plan_of
        self._calibration, self._switchable = calibration, switchable
        self._nodes = list(walk.nodes(graph))
        self._numbers = {id(node): number for number, node in enumerate(self._nodes)}
        self._by_use = {one.use: one for one in switchable.weights}
        read = corrected_inputs(plan_of(graph, scheme))
        parts = [calibration.half(half, calibration.options) for half in range(2)]
        self._means = [part.means(read) for part in parts]
        self._measured: dict[tuple[str, int], Calibration] = {}
        self._memory = memory
        self._tables: dict[WeightKind, Mapping[tuple[int, int], FakeQuant]] = {}
        self._weights: dict[tuple[str, WeightKind], AnyArray] = {}
        self._biases: dict[tuple[str, WeightKind, int], AnyArray] = {}
        self._grids: dict[tuple[str, str, int], QParams] = {}

    def feed(self, setting: Setting, half: int) -> Feed:
        """Return the arrays of a setting, with ranges from a half of the samples."""
        found = self.weights(setting)
        found |= {one.input: self._bias(one, setting, half) for one in self._switchable.biases}
        for site in self._switchable.ranges:
            found[site.scale], found[site.zero_point] = self._grid(site, setting.method_of(site.group), half)
        return found

    def reaches_beyond(self, name: str, step: QuantSpec) -> bool:
        """Return whether the range of a tensor is wider than what was seen if its ends tell how far."""
        found = self._calibration.observed.get(name)
        if found is None or found.is_empty:
            return False
        options = CalibrationOptions(EXTRAPOLATED)
        low, high = choose_range(found, step.format, symmetric=step.symmetric, options=options)
        return low < found.low or high > found.high

    def weights(self, setting: Setting) -> dict[str, AnyArray]:
        """Return the rounded constants of a setting by the names of their inputs."""
        return {one.input: self._weight(one, setting.kind_of(one.layer)) for one in self._switchable.weights}

    def _grid(self, site: RangeSite, method: str, half: int) -> QParams:
        key = site.scale, method, half
        if key not in self._grids:
            low, high = shared_range(site.members, self._ranges(method, half), site.step)
            powers = self._scheme.scale == POWER_OF_TWO
            step = site.step
            self._grids[key] = range_scale(
                low, high, step.format, symmetric=step.symmetric, power_of_two=powers
            )
        return self._grids[key]

    def _ranges(self, method: str, half: int) -> Calibration:
        if (method, half) not in self._measured:
            options = options_of(self._scheme.with_(calibrate_method=method))
            self._measured[method, half] = self._calibration.half(half, options)
        return self._measured[method, half]

    def _weight(self, site: WeightSite, kind: WeightKind) -> AnyArray:
        key = site.input, kind
        if key not in self._weights:
            self._weights[key] = self._table(kind)[site.use](site.values)
        return self._weights[key]

    def _bias(self, site: BiasSite, setting: Setting, half: int) -> AnyArray:
        weight = self._by_use.get((site.node, 1))
        if not setting.corrected or weight is None:
            return site.values
        kind = setting.kind_of(weight.layer)
        key = site.input, kind, half
        if key not in self._biases:
            error = self._weight(weight, kind) - weight.values
            new = corrected(self._nodes[site.node], site.values, error, self._means[half])
            self._biases[key] = site.values if new is None else new
        return self._biases[key]

    def _table(self, kind: WeightKind) -> Mapping[tuple[int, int], FakeQuant]:
        """Return what is done to inputs of nodes, of which that of constants matters here."""
        if kind not in self._tables:
            plan = self._plan_of(self._graph, self._scheme.with_(**kind.changes))
            found = fake_quants(plan, self._calibration.with_(CalibrationOptions()), self._memory)
            self._tables[kind] = {(self._numbers[node], index): one for (node, index), one in found.items()}
        return self._tables[kind]
