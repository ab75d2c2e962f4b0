"""Quantize one float model, prepared and calibrated once, in any mix of formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate import Calibration, Progress
from transforms.calibrate.calibrate_plan import calibrate_plan
from transforms.calibrate.calibration_data import CalibrationData
from transforms.conversion.prepare import prepare_for
from transforms.conversion.record import Record
from transforms.conversion.rewriting import Rewriting
from transforms.conversion.rows import run_rows
from transforms.conversion.write_plan import FINISH, make_plan, write_plan
from transforms.graph import walk
from transforms.graph.selection import exactly
from transforms.model.copy_graph import copy_graph
from transforms.plan.joined_ranges import JOINED, joined_far_apart
from transforms.plan.named_nodes import named
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.sampled_exceptions import (
    guarded_nan,
    kept_in_float,
    of_zeros,
    without_range,
    zero_inputs,
)
from transforms.plan.scheme_targets import Targets
from transforms.plan.weight_cache import WeightMemory
from transforms.precision.candidates import layers_of
from transforms.precision.mixed import Mixed
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.scheme import FLOAT32

Mix = Mapping[str, LayerRule]
"""Formats of single layers by name; all other layers have those of the scheme."""


class MixedModel:
    """Builds quantized models of one float model in which single layers have other formats."""

    def __init__(self, graph: gs.Graph, scheme: Scheme) -> None:
        """Prepare a float model, in place, for a scheme and the formats of its mixed precision.

        Raises as :func:`transforms.pipelines.quantize_graph.quantize_graph` does.
        """
        self.prepared = Record()
        ruled = scheme.by_rule()
        self._targets = prepare_for(graph, ruled, self.prepared)
        self.graph = graph
        rule = scheme.auto_mixed_precision
        dual = scheme.dual_quant_nodes or (rule is not None and rule.dual_quant_nodes)
        self.scheme = ruled.with_(auto_mixed_precision=None, finetune=None, dual_quant_nodes=dual)
        self._memory = WeightMemory()
        self._ranges: Calibration | None = None

    def measure(
        self, data: CalibrationData | None, mixes: Iterable[Mix], *, progress: Progress | None = None
    ) -> None:
        """Measure the statistics for all given mixes in one pass over the data.

        A mix that is built later may give a layer only formats that one of these gives it. Raises
        MissingDataError and ValueError as :func:`transforms.calibrate.calibrate_plan.calibrate_plan` does.
        """
        plans = [self._plan(mix)[0] for mix in mixes]
        self._ranges = calibrate_plan(plans, data, progress=progress)
        holding = self._ranges.holding_nan if self._ranges else set[str]()
        names = list(dict.fromkeys(name for plan in plans for name in guarded_nan(plan, holding)))
        if names:
            self._keep_float(names, "NaN that the model looks for")
        extremes = self._ranges.extremes() if self._ranges else {}
        names = list(dict.fromkeys(name for plan in plans for name in joined_far_apart(plan, extremes)))
        if names:
            self._keep_float(names, JOINED)
        feeds = data.feeds(self.graph) if data and self._ranges else None
        zeros = zero_inputs(self.graph, (feed for _, feed in feeds)) if feeds and feeds.is_repeatable else []
        names = list(dict.fromkeys(name for plan in plans for name in without_range(plan, zeros)))
        if names:
            self._keep_float(names, of_zeros(zeros))

    def _keep_float(self, names: list[str], why: str) -> None:
        """Keep tensors in float in all mixes, with a note."""
        self.prepared.notes.append(kept_in_float(names, why))
        tensors = {**self.scheme.tensors, **dict.fromkeys(names, FLOAT32)}
        self.scheme = self.scheme.with_(tensors=tensors)
        self._targets = self._targets.naming(self.graph, self.scheme)

    def in_float(self) -> Mixed:
        """Return a copy of the float model, in which each tensor corresponds to itself."""
        graph = copy_graph(self.graph)
        raw = {name: t for name, t in walk.tensors(graph).items() if isinstance(t, gs.Variable)}
        return Mixed(graph, raw, layers_of(graph), Record())

    def targets(self, graph: gs.Graph | None = None) -> Targets:
        """Return the nodes and tensors that the scheme names in the float model, or in a copy of it."""
        return self._targets.resolve_in(self.graph if graph is None else graph)

    def scheme_of(self, mix: Mix) -> Scheme:
        """Return the scheme with the rules of a mix, in order after those of other layers."""
        rules = {exactly(name): rule for name, rule in mix.items()}
        remaining = {pattern: rule for pattern, rule in self.scheme.layers.items() if pattern not in rules}
        return self.scheme.with_(layers={**remaining, **rules})

    def build(self, mix: Mix, *, finished: bool = True) -> Mixed:
        """Return the quantized model of a mix, the same as quantizing by the scheme of the mix.

        Without ``finished``, the rewrites that follow the insertion of nodes are left out, such as folding a
        Relu.
        """
        plan, mixed = self._plan(mix)
        graph = mixed.graph
        outputs = [(t.name, node, index) for node in graph.nodes for index, t in enumerate(node.outputs)]
        write_plan(plan, self._ranges, mixed.done, self._memory)
        if finished:
            run_rows(Rewriting(graph, self.scheme, mixed.done), FINISH)
        mixed.raw = {tensor.name: tensor for tensor in graph.inputs}
        mixed.raw |= {name: node.outputs[index] for name, node, index in outputs}
        return mixed

    def _plan(self, mix: Mix) -> tuple[QuantizationPlan, Mixed]:
        graph = copy_graph(self.graph)
        layers = layers_of(graph)
        targets = self.targets(graph)
        names_by_rule: dict[LayerRule, set[str]] = {}
        for name, rule in mix.items():
            names_by_rule.setdefault(rule, set()).add(name)
        rules = [(min(names), named(graph, names), rule) for rule, names in names_by_rule.items()]
        targets = Targets(targets.excluded, (*targets.rules, *rules), targets.tensors)
        prepared = self.prepared
        done = Record(changes=Counter(prepared.changes), notes=list(prepared.notes))
        done.calibrated = len(self._ranges.observed) if self._ranges else 0
        mixed = Mixed(graph, {}, layers, done)
        return make_plan(graph, self.scheme_of(mix), targets, mixed.done), mixed
