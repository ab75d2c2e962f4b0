"""The quantizations of a graph: the grids of each tensor, and the uses that read it on them.

:mod:`transforms.plan.choose_specs` chooses the grids, :func:`transforms.insert_qdq.insert_qdq` writes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.integers import finite_range
from transforms import features
from transforms.graph import dot_products, walk
from transforms.graph.constants import magnitude
from transforms.graph.dot_products import TensorAxis
from transforms.plan.choose_specs import SpecChooser
from transforms.plan.quant_spec import ACTIVATION, BIAS, WEIGHT, QuantSite, QuantSpec, saturates
from transforms.plan.scheme_targets import FormatTable, SchemeTargets, Targets
from transforms.plan.tensor_grids import TensorGrid
from transforms.scheme.scheme import AUTO, Scheme
from transforms.scheme.sources import scheme_of
from transforms.scheme.targets import FOLDING

MINMAX, MSE, WEIGHTED = "MinMax", "MSE", "WeightedMSE"

_COARSE = 4  # bits up to which the largest weight of a channel is a poor measure of its scale

_WIDER = math.sqrt(2)
"""Limit on how much wider a shared range may be: rounding errors grow as much, by 3 dB or half a bit."""

Extremes = Mapping[str, tuple[float, float]]
"""The lowest and the highest number of tensors, by name."""

WeighedUses = dict[int, list[tuple[tuple[gs.Node, int], gs.Tensor, int]]]
"""By the id of a weight: node and index of its input, the other operand, and the axis of its sum."""


def check_plan(plan: object, rewrite: str) -> None:
    """Raise TypeError unless this is a plan: a graph alone does not have the formats of tensors."""
    if not isinstance(plan, QuantizationPlan):
        description = "a graph" if isinstance(plan, gs.Graph) else f"a {type(plan).__name__}"
        maker = "transforms.plan.quantization_plan.QuantizationPlan(graph, scheme)"
        raise TypeError(f"{rewrite} changes a plan, not {description}: {maker} makes one")


class QuantizationPlan:
    """The quantizations of a graph in the order of first use, and the groups of tensors with one range."""

    def __init__(
        self, graph: gs.Graph, scheme: Scheme | str, targets: Targets | SchemeTargets | None = None
    ) -> None:
        """Plan a prepared graph; ``scheme`` may be the name of a preset.

        ``targets`` is what the scheme names, if it was resolved before; tensors may have been added to it.
        Raises ValueError for a layer or tensor of the scheme that cannot take its format.
        """
        walk.check_graph(graph)
        self.graph, self.scheme = graph, (scheme := scheme_of(scheme))
        targets = targets or SchemeTargets(graph, scheme)
        if isinstance(targets, SchemeTargets):
            targets = targets.naming(graph, scheme).resolve_in(graph)
        self.specs, self.fixed = SpecChooser(graph, scheme, targets), targets.fixed
        self.named = frozenset(targets.tensors)
        """``id`` of the tensors to which the scheme gives a format by name."""
        self._shared: dict[int, list[gs.Tensor]] = {}
        self._joining: list[gs.Node] = []
        self._alike = 0
        self.quantizations = list(self._find().values())
        _check_targets(graph, scheme, targets, self.specs.formats, self.quantizations)

    def _find(self) -> dict[tuple[int, QuantSpec, str], QuantSite]:
        sites: dict[tuple[int, QuantSpec, str], QuantSite] = {}

        def _site(tensor: gs.Tensor, spec: QuantSpec, role: str) -> QuantSite:
            new = QuantSite(tensor, *self.specs.owners[id(tensor)], steps=(spec,), role=role)
            return sites.setdefault((id(tensor), spec, role), new)

        for node in walk.nodes(self.graph):
            for index, tensor in enumerate(node.inputs):
                spec, role = self.specs.of_input(node, index)
                if spec is not None:
                    _site(tensor, spec, role).uses.append((node, index))
        for tensor in self.graph.outputs:
            spec = self.specs.of_output(tensor)
            if spec is not None:
                _site(tensor, spec, ACTIVATION).is_output = True
        return sites

    def share(self, tensors: list[gs.Tensor]) -> bool:
        """Give tensors one range, the hull of theirs; return False if they already share one."""
        first, *rest = {id(group): group for group in map(self.group, tensors)}.values()
        for group in rest:
            self._shared.update((id(tensor), first) for tensor in group)
            first += group
        return bool(rest)

    def share_if_alike(self, joining: gs.Node) -> None:
        """Let a node's inputs and outputs share a range if :meth:`settle` finds that little is lost."""
        self._joining.append(joining)

    def settle(self, extremes: Extremes) -> int:
        """Merge ranges of tensors that are alike; return how many times, including earlier calls.

        ``extremes``: the lowest and the highest number of each tensor in all samples.
        """
        joining, self._joining = self._joining, []
        sites: dict[int, list[QuantSite]] = {}
        for site in self.quantizations if joining else ():
            sites.setdefault(id(self.specs.integers.source(site.tensor)), []).append(site)
        for node in joining:
            if self._is_alike(node, sites, extremes):
                self._alike += self.share([*node.inputs, *node.outputs])
        return self._alike

    def _is_alike(self, joining: gs.Node, sites: Mapping[int, list[QuantSite]], extremes: Extremes) -> bool:
        """Return whether one scale is at most half a bit coarser than that of each input's group.

        ``sites``: by the id of the tensor that gives them their scale. An input with no other reader loses
        nothing: the result is as coarse as it. The result itself gets coarser if a scale comes from a tensor
        of which only a part is joined.
        """
        members = map(self.group, (*joining.inputs, *joining.outputs))
        groups = list({id(group): group for group in members}.values())
        of_groups = [[site for tensor in group for site in sites.get(id(tensor), ())] for group in groups]
        symmetric = any(step.symmetric for some in of_groups for site in some for step in site.steps)
        ranges = [extent for group in groups if (extent := range_of(group, extremes)) is not None]
        if len(ranges) < len(groups):
            return False

        def _width(low: float, high: float) -> float:
            return 2 * max(-low, high) if symmetric else high - low

        def _is_read(site: QuantSite, group: list[gs.Tensor]) -> bool:
            """Return whether the joining node makes it, or more than that node and what moves it reads it."""
            if walk.producer(site.tensor) is joining or site.is_output:
                return True
            results = [result for node, _ in site.uses if node is not joining for result in node.outputs]
            return any(self.group(result) is not group for result in results)

        width = _width(min(low for low, _ in ranges), max(high for _, high in ranges))
        return not any(
            width > _WIDER * _width(*group_range) and any(_is_read(site, group) for site in some)
            for group_range, group, some in zip(ranges, groups, of_groups, strict=True)
        )

    def group(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        """Return the tensors that share a range with a tensor, including the source of its scale."""
        source = self.specs.integers.source(tensor)
        return self._shared.setdefault(id(source), [source])

    def measured(self) -> list[gs.Tensor]:
        """Return the tensors whose ranges the plan needs, each once, in the order of first use."""
        groups = (
            self.group(quantization.tensor)
            for quantization in self.quantizations
            if quantization.role != BIAS
            and any(step.needs_range and not self.grid(quantization, step) for step in quantization.steps)
        )
        distinct = {id(group): group for group in groups}.values()
        wanted = (member for group in distinct for member in group if not isinstance(member, gs.Constant))
        return list({id(tensor): tensor for tensor in wanted}.values())

    def grid(self, quantization: QuantSite, step: QuantSpec) -> TensorGrid | None:
        """Return the fixed grid of a tensor, or of one that shares its range, or None."""
        if not self.fixed:
            return None
        tensor = quantization.tensor
        group = self.group(tensor) if quantization.role != WEIGHT else ()
        names = (tensor.name, *(member.name for member in group))
        return self.fixed.of(names, step.format, quantization.role, step.axis)

    def replace_each(self, parts: Callable[[QuantSite], list[QuantSite]]) -> None:
        """Replace each quantization by those that ``parts`` returns for it."""
        self.quantizations = [part for quantization in self.quantizations for part in parts(quantization)]


def range_of(group: Sequence[gs.Tensor], extremes: Extremes) -> tuple[float, float] | None:
    """Return the lowest and highest number of a group, including 0; None if those of a tensor are unknown."""
    ranges = [(0.0, 0.0)]
    for tensor in group:
        if isinstance(tensor, gs.Constant):
            low, high = finite_range(np.asarray(tensor.values, np.float32))
            ranges.append((float(low), float(high)))
        elif tensor.name in extremes:
            ranges.append(extremes[tensor.name])
        else:
            return None
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _check_targets(
    graph: gs.Graph,
    scheme: Scheme,
    targets: Targets,
    formats: FormatTable,
    quantizations: Sequence[QuantSite],
) -> None:
    """Raise ValueError for a named layer or tensor that got nothing in the named format.

    A rule that is overridden on all its nodes is accepted, as is one that gives a format to weights of nodes
    without weights but has another effect. Also raised for a tensor that would need a range inside a body,
    where none is measured.
    """
    for site in quantizations:
        name, format = targets.tensors.get(id(site.tensor), ("", ""))
        measured = name and site.steps[0].needs_range and isinstance(site.tensor, gs.Variable)
        if measured and site.owner is not graph:
            why = f"{format} needs a range, none is measured in If, Loop and Scan"
            raise ValueError(f"tensors entry '{name}': {why}")
    placed = {id(site.tensor) for site in quantizations}
    names = {name for key, (name, _) in targets.tensors.items() if key in placed}
    for name, format in targets.tensors.values():
        if name not in names and scheme.format(format) is not None:
            raise ValueError(f"tensors entry '{name}': nothing that reads it can take {format}")
    used = {(id(node), q.steps[0].format.name) for q in quantizations for node, _ in q.uses}
    for pattern, selection, rule in targets.rules:
        wanted = [
            (node, name)
            for part, name in {"activation": rule.activation, "weight": rule.weight}.items()
            if name is not None and (fmt := scheme.format(name)) is not None
            for node in walk.nodes(graph)
            if node in selection and getattr(formats[node], part) == fmt
            if not features.is_stored_later(node)
        ]
        if wanted and not any((id(node), name) in used for node, name in wanted):
            kinds = ", ".join(sorted({node.op for node, _ in wanted}))
            words = " or ".join(dict.fromkeys(name for _, name in wanted))
            raise ValueError(f"layers entry '{pattern}': no input of {kinds} can take {words} there")


def each_use(plan: QuantizationPlan) -> Iterator[tuple[gs.Node, int, QuantSite]]:
    """Yield every input of a node that reads a quantized value."""
    for quantization in plan.quantizations:
        for node, index in quantization.uses:
            yield node, index, quantization


def saturated_constants(plan: QuantizationPlan) -> list[str]:
    """Return the names of constants that their float type saturates, in the order of first use."""
    names: dict[str, None] = {}
    for site in plan.quantizations:
        fmt = site.steps[-1].format
        is_limited = isinstance(site.tensor, gs.Constant) and saturates(fmt)
        if is_limited and magnitude(site.tensor.values) > fmt.highest:
            names[str(site.tensor.name)] = None
    return [*names]


def weight_method(scheme: Scheme, step: QuantSpec) -> str:
    """Return the method for the scale of a weight on a symmetric integer grid."""
    if (method := scheme.weight_method if step.method == AUTO else step.method) != AUTO:
        return method
    if step.axis is None:
        return WEIGHTED
    is_folded = step.form is not None and scheme.target in FOLDING
    return MSE if is_folded or step.format.bits <= _COARSE else MINMAX


def weighed_inputs(plan: QuantizationPlan) -> list[TensorAxis]:
    """Return the tensors whose channel mean squares are needed, with the axis of the channels."""
    uses = (use for some in weighed_uses(plan).values() for use in some)
    return list(dict.fromkeys((tensor.name, axis) for _, tensor, axis in uses))


def weighed_uses(plan: QuantizationPlan) -> WeighedUses:
    """Return the uses of weights whose errors are weighted."""
    uses: WeighedUses = {}
    for node, index, quantization in each_use(plan):
        step = quantization.steps[-1]
        if quantization.role != WEIGHT or not step.needs_range or not step.symmetric or step.form:
            continue
        other = node.inputs[1 - index]
        measurable = isinstance(other, gs.Variable) and other.shape is not None
        if measurable and weight_method(plan.scheme, step) == WEIGHTED and plan.specs.is_in_main_graph(other):
            axis = dot_products.sum_axis(node, 1 - index, len(other.shape))
            uses.setdefault(id(node.inputs[index]), []).append(((node, index), other, axis))
    return uses


def importance(
    uses: WeighedUses, weight: gs.Constant, mean_squares: Mapping[TensorAxis, NDArray[np.float64]]
) -> NDArray[np.float64] | None:
    """Return the importance of each number of a weight, in a shape that broadcasts to the weight's.

    ``mean_squares`` has one number per channel, by tensor and axis. None if the other operand was not
    measured. A weight shared by several layers gets the sum of their importance.
    """
    terms = [
        dot_products.along_inputs(node, index, weight.shape, mean_squares[tensor.name, axis])
        for (node, index), tensor, axis in uses.get(id(weight), ())
        if (tensor.name, axis) in mean_squares
    ]
    return sum(terms[1:], terms[0]) if terms else None
