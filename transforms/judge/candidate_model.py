"""Evaluate candidates that differ in ranges, scales, biases and float tensors in one session of one model.

Scales, zero points, rounded weights, corrected biases and switches that leave tensors and layers in float are
inputs of the model. A candidate is a scheme, from which these inputs are computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed, QParams
from ops.integers import range_scale
from transforms.calibrate.calibration import Calibration, options_of
from transforms.calibrate.methods import CalibrationOptions, choose_range
from transforms.graph import walk
from transforms.graph.selection import exactly, label_of
from transforms.judge.errors import Errors
from transforms.judge.judge import Judge
from transforms.judge.switchable_ranges import BiasSite, RangeSite, WeightSite, switchable_ranges
from transforms.model.copy_graph import copy_graph
from transforms.model.graph_proto import export_light
from transforms.plan.bias_correction import corrected, corrected_inputs
from transforms.plan.qparams import QParamsTable, shared_range
from transforms.plan.quant_spec import BIAS, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan, each_use
from transforms.plan.weight_cache import WeightMemory
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import IN_FLOAT
from transforms.scheme.scheme import FLOAT32, POWER_OF_TWO

PlanOf = Callable[[gs.Graph, Scheme], QuantizationPlan]

_OF_WEIGHTS = ("per_channel", "weight_method")

FED = ("calibrate_method", "calibrate_tensors", "correct_biases", "tensors", "layers", *_OF_WEIGHTS)
"""Keys of a scheme in which candidates may differ; of ``tensors`` and ``layers``, only entries of float32.

Such layers have to be named one by one.
"""

_ONE_KIND = 1 << 27
"""Bytes of weights above which rounded weights are kept for one kind of candidates only, and only one model
is open at a time: each is another copy."""

_BOTH = 2
"""Index of both folds together, after 0 and 1 for each."""

_Kind = tuple[bool | str, str]
Read = Callable[[AnyArray], AnyArray]
"""Maps the float values of a weight to those that a node reads."""


class CandidateModel:
    """Measures the errors of the outputs of candidates of one model.

    ``closed_ends``: names of tensors that are integers for the kernel of the layer alone that makes them.
    ``seconds``: wall time of a run of the candidate that was measured last.
    """

    def __init__(
        self,
        graph: gs.Graph,
        scheme: Scheme,
        plan_of: PlanOf,
        statistics: Calibration | None,
        judge: Judge,
        memory: WeightMemory,
    ) -> None:
        """Open the model of a scheme without 'auto' keys; the graph is not changed.

        ``statistics``: with those of both folds; None for formats that need none. ``memory``: cache of
        quantized weights.
        """
        self._graph, self._scheme, self._plan_of = graph, scheme, plan_of
        self._judge, self._memory, self._statistics = judge, memory, statistics
        self.seconds = 0.0
        copy = copy_graph(graph)
        plan = plan_of(copy, scheme)
        if statistics is not None:
            plan.settle(statistics.extremes())
        base, read = _kind_of(scheme), corrected_inputs(plan)
        self._tables: dict[_Kind, Mapping[tuple[int, int], Read]] = {base: self._readers(plan)}
        self.closed_ends = plan.specs.integers.closed_ends()
        judge.reference.show(copy)
        # products that are quantized at run time are emulated after the switches are in place
        rounded = [form.planned(plan) for form in plan.specs.formats.at_run_time]
        self.inputs = switchable_ranges(plan)
        for products in rounded:
            products.emulate()
        self._shown = judge.shown
        self._opened: OpenModel | None = None
        # nodes, by their index in the order of ``walk.nodes``, and caches by fold, ranges and kind of weights
        self._structure = "" if judge.measured is None else _structure(self.inputs.graph)
        self.nodes = list(walk.nodes(graph))
        self._patterns = [exactly(label_of(node)) for node in self.nodes]
        self._weight_of = {weight.use: weight for weight in self.inputs.weights}
        self._ranges: dict[tuple[int, str], Calibration] = {}
        folds = () if statistics is None else (0, 1, _BOTH)
        self._means = [self._of_fold(scheme, fold).means(read) for fold in folds]
        self._grids: dict[tuple[int, str, str], Mapping[str, AnyArray]] = {}
        self._weights: dict[tuple[str, _Kind], AnyArray] = {}
        self._is_large = sum(weight.stored.nbytes for weight in self.inputs.weights) > _ONE_KIND
        self._biases: dict[tuple[str, _Kind, int], AnyArray] = {}

    def errors(self, scheme: Scheme, places: Sequence[int] | None = None, *, whole: bool = False) -> Errors:
        """Return the errors of a candidate on all samples, or some, each with ranges from the other fold.

        ``whole``: with ranges from all samples instead, so that clipping adds little to errors of rounding.
        """
        places = range(self._judge.count) if places is None else places
        measured = self._judge.measured
        if measured is None:
            return self._errors(scheme, places, whole=whole)
        candidate = self._structure, repr(scheme.with_(target="")), tuple(places), whole
        if candidate not in measured:
            measured[candidate] = self._errors(scheme, places, whole=whole)
        return measured[candidate]

    def _errors(self, scheme: Scheme, places: Sequence[int], *, whole: bool) -> Errors:
        self._opened = self._opened or self._open()
        run = self._opened.run

        def _run_of(fold: int) -> Callable[[Feed], Feed]:
            inputs = self.feed(scheme, _BOTH if whole else 1 - fold)
            return lambda feed: run({**feed, **inputs}, self._shown)

        start = time.perf_counter()
        errors = self._judge.errors(_run_of, places)
        self.seconds = (time.perf_counter() - start) / max(1, len(places))
        return errors

    def close(self) -> None:
        """Free the memory of session and weights; the next call of :meth:`errors` opens the model again."""
        self._opened = None
        self._weights.clear()

    def rest(self) -> None:
        """Close the model if its weights are large, before another one opens with a copy of its own."""
        if self._is_large:
            self.close()

    def _open(self) -> OpenModel:
        return open_model(self.inputs.graph, self._judge.reference.options)

    def feed(self, scheme: Scheme, fold: int) -> Feed:
        """Return the inputs of a candidate, in addition to a sample, with ranges from one fold."""
        float_tensors = {name for name, format in scheme.tensors.items() if format == FLOAT32}
        float_nodes = self._in_float(scheme)
        inputs = dict(self.grids(scheme, fold))
        if self._is_large:
            self._forget_all_but(_kind_of(scheme))
        for weight in self.inputs.weights:
            is_float = weight.tensor in float_tensors or weight.use[0] in float_nodes
            inputs[weight.input] = weight.values if is_float else self._weight(weight, scheme)
        for bias in self.inputs.biases:
            is_float = bias.node in float_nodes
            inputs[bias.input] = bias.values if is_float else self._bias(bias, scheme, fold)
        for use in self.inputs.uses:
            inputs[use.switch] = np.asarray(use.tensor in float_tensors or use.consumer in float_nodes)
        return inputs

    def _in_float(self, scheme: Scheme) -> set[int]:
        """Return the indices of the nodes that a scheme leaves in float by name."""
        names = {pattern for pattern, rule in scheme.layers.items() if rule == IN_FLOAT}
        return {place for place, pattern in enumerate(self._patterns) if pattern in names}

    def grids(self, scheme: Scheme, fold: int) -> Mapping[str, AnyArray]:
        """Return scales and zero points of computed tensors for a candidate, with ranges from one fold."""
        key = fold, _ranges_of(scheme), scheme.scale
        if key not in self._grids:
            grids: dict[str, AnyArray] = {}
            for site in self.inputs.ranges:
                if site.scale:
                    grids[site.scale], grids[site.zero_point] = self._grid(site, scheme, fold)
            self._grids[key] = grids
        return self._grids[key]

    def _forget_all_but(self, kind: _Kind) -> None:
        for key in [key for key in self._weights if key[1] != kind]:
            del self._weights[key]

    def is_same(self, first: Scheme, other: Scheme) -> bool:
        """Return whether two candidates give the same model."""
        if any(getattr(first, key) != getattr(other, key) for key in FED if key not in _OF_WEIGHTS):
            return False
        return all(
            np.array_equal(self._weight(site, first), self._weight(site, other))
            for site in self.inputs.weights
        )

    def groups_of(self, names: Collection[str]) -> list[list[str]]:
        """Return the groups of tensors with a common scale that contain one of ``names``, by name."""
        groups = {
            site.group: [str(member.name) for member in site.members]
            for site in self.inputs.ranges
            if any(member.name in names for member in site.members)
        }
        return list(groups.values())

    def reaching_beyond(self) -> list[str]:
        """Return the tensors whose range by the method "Extrapolated" is wider than that of the samples."""
        sites = {site.group: site for site in self.inputs.ranges if site.step.needs_range}
        return [
            str(member.name)
            for site in sites.values()
            if any(self._reaches_beyond(str(member.name), site.step) for member in site.members)
            for member in site.members
        ]

    def _reaches_beyond(self, name: str, step: QuantSpec) -> bool:
        observed = self._statistics.observed.get(name) if self._statistics else None
        if observed is None or observed.is_empty:
            return False
        options = CalibrationOptions("Extrapolated")
        low, high = choose_range(observed, step.format, symmetric=step.symmetric, options=options)
        return low < observed.low or high > observed.high

    def _grid(self, site: RangeSite, scheme: Scheme, fold: int) -> QParams:
        low, high = shared_range(site.members, self._of_fold(scheme, fold), site.step)
        powers, step = scheme.scale == POWER_OF_TWO, site.step
        return range_scale(low, high, step.format, symmetric=step.symmetric, power_of_two=powers)

    def _of_fold(self, scheme: Scheme, fold: int) -> Calibration:
        assert self._statistics is not None, "there are ranges"
        key = fold, _ranges_of(scheme)
        if key not in self._ranges:
            statistics, options = self._statistics, options_of(scheme)
            self._ranges[key] = statistics.with_(options) if fold == _BOTH else statistics.half(fold, options)
        return self._ranges[key]

    def _weight(self, site: WeightSite, scheme: Scheme) -> AnyArray:
        kind = _kind_of(scheme)
        key = site.input, kind
        if key not in self._weights:
            self._weights[key] = self._table(kind)[site.use](site.values)
        return self._weights[key]

    def _bias(self, site: BiasSite, scheme: Scheme, fold: int) -> AnyArray:
        weight = self._weight_of.get((site.node, 1))
        if scheme.correct_biases is not True or weight is None:
            return site.values
        kind = _kind_of(scheme)
        key = site.input, kind, fold
        if key not in self._biases:
            error = self._weight(weight, scheme) - weight.values
            new = corrected(self.nodes[site.node], site.values, error, self._means[fold])
            self._biases[key] = site.values if new is None else new
        return self._biases[key]

    def _table(self, kind: _Kind) -> Mapping[tuple[int, int], Read]:
        """Return how inputs are quantized by weights of a kind, by index of node and input."""
        if kind not in self._tables:
            scheme = self._scheme.with_(per_channel=kind[0], weight_method=kind[1])
            self._tables[kind] = self._readers(self._plan_of(self._graph, scheme))
        return self._tables[kind]

    def _readers(self, plan: QuantizationPlan) -> Mapping[tuple[int, int], Read]:
        """Return the quantization of each input, by index of node and input; used for constants here."""
        ranges = self._statistics and self._statistics.with_(CalibrationOptions())
        read = QParamsTable(plan, ranges, self._memory).read
        numbers = {id(node): number for number, node in enumerate(walk.nodes(plan.graph))}
        return {
            (numbers[id(node)], index): partial(read, site)
            for node, index, site in each_use(plan)
            if site.role != BIAS
        }


def _structure(graph: gs.Graph) -> str:
    """Return what tells models apart that are made of one float model; its weights follow from the scheme."""
    light, _ = export_light(graph)
    return sha256(light.SerializeToString(deterministic=True)).hexdigest()


def _ranges_of(scheme: Scheme) -> str:
    """Return a key of the options that determine ranges."""
    options = options_of(scheme)
    return repr((options.method, sorted(options.tensors.items())))


def _kind_of(scheme: Scheme) -> _Kind:
    return scheme.per_channel, scheme.weight_method
