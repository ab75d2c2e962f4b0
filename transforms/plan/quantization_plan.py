"""The quantizations of a graph: which tensor is put on which grids, for which of its uses.

Which grid that is, :mod:`transforms.plan.choose_specs` decides; :func:`transforms.insert_qdq.insert_qdq`
writes the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dot_products, walk
from transforms.graph.constants import magnitude
from transforms.graph.dot_products import TensorAxis
from transforms.plan.choose_specs import SpecChooser
from transforms.plan.node_formats import check_targets
from transforms.plan.quant_spec import ACTIVATION, BIAS, WEIGHT, QuantSite, QuantSpec, saturates
from transforms.plan.range_joiner import Extremes, RangeJoiner
from transforms.plan.scheme_targets import SchemeTargets, Targets
from transforms.plan.tensor_grids import TensorGrid
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO

MINMAX, MSE, WEIGHTED = "MinMax", "MSE", "WeightedMSE"

_COARSE = 4  # bits from which down the largest weight of a channel is a poor measure of its scale

WeighedUse = tuple[tuple[gs.Node, int], gs.Tensor, int]
"""Node and index of the input, what it is multiplied with, and the axis of the sum in that."""

WeighedUses = dict[int, list[WeighedUse]]


class QuantizationPlan:
    """The quantizations of a graph in the order of first use, and which tensors share a range."""

    def __init__(self, graph: gs.Graph, scheme: Scheme, targets: Targets | None = None) -> None:
        """Plan a prepared graph; ``targets`` is what the scheme names, if that was found earlier.

        Raises ValueError for a layer or tensor of the scheme that cannot take its format.
        """
        self.graph, self.scheme = graph, scheme
        targets = targets or SchemeTargets(graph, scheme).resolve_in(graph)
        self.specs, self.fixed = SpecChooser(graph, scheme, targets), targets.fixed
        self._shared: dict[int, list[gs.Tensor]] = {}
        self._joining: list[gs.Node] = []
        self._alike = 0
        self.quantizations = list(self._find().values())
        check_targets(graph, scheme, targets, self.specs.formats, self.quantizations)

    def _find(self) -> dict[tuple[int, QuantSpec, str], QuantSite]:
        found: dict[tuple[int, QuantSpec, str], QuantSite] = {}

        def _site(tensor: gs.Tensor, spec: QuantSpec, role: str) -> QuantSite:
            new = QuantSite(tensor, *self.specs.owners[id(tensor)], steps=(spec,), role=role)
            return found.setdefault((id(tensor), spec, role), new)

        for node in walk.nodes(self.graph):
            for index, tensor in enumerate(node.inputs):
                spec, role = self.specs.of_input(node, index)
                if spec is not None:
                    _site(tensor, spec, role).uses.append((node, index))
        for tensor in self.graph.outputs:
            spec = self.specs.of_output(tensor)
            if spec is not None:
                _site(tensor, spec, ACTIVATION).is_output = True
        return found

    def share(self, tensors: list[gs.Tensor]) -> bool:
        """Give tensors one range, the hull of theirs; return False if they share one already."""
        first, *others = {id(group): group for group in map(self.group, tensors)}.values()
        for group in others:
            self._shared.update((id(tensor), first) for tensor in group)
            first += group
        return bool(others)

    def share_if_alike(self, joining: gs.Node) -> None:
        """Let all that a node reads and makes share a range if :meth:`settle` finds that little is lost."""
        self._joining.append(joining)

    def settle(self, extremes: Extremes) -> int:
        """Let tensors share ranges where they are alike; return how many times, with those of earlier calls.

        ``extremes``: the lowest and the highest number of each tensor in all samples.
        """
        joining, self._joining = self._joining, []
        if joining:
            joiner = RangeJoiner(self.quantizations, self.specs.integers.source, self.group, extremes)
            for node in joining:
                if joiner.is_alike(node):
                    self._alike += self.share([*node.inputs, *node.outputs])
        return self._alike

    def group(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        """Return the tensors that have one range with a tensor: the source of its scale is among them."""
        source = self.specs.integers.source(tensor)
        return self._shared.setdefault(id(source), [source])

    def measured(self) -> list[gs.Tensor]:
        """Return the tensors of which the plan needs ranges, each once, in the order of first use."""
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
        """Return the grid that is given for a tensor, or for one that shares its range; None if none is."""
        if not self.fixed:
            return None
        tensor = quantization.tensor
        others = self.group(tensor) if quantization.role != WEIGHT else ()
        names = (tensor.name, *(one.name for one in others))
        return self.fixed.of(names, step.format, quantization.role, step.axis)

    def replace_each(self, parts: Callable[[QuantSite], list[QuantSite]]) -> None:
        """Put what ``parts`` returns for a quantization in its place."""
        self.quantizations = [part for quantization in self.quantizations for part in parts(quantization)]


def each_use(plan: QuantizationPlan) -> Iterator[tuple[gs.Node, int, QuantSite]]:
    """Yield every input of a node that reads a quantized value."""
    for quantization in plan.quantizations:
        for node, index in quantization.uses:
            yield node, index, quantization


def saturated_constants(plan: QuantizationPlan) -> list[str]:
    """Return the names of the constants with numbers that their float type does not have, in the order of
    first use: what is stored is its largest one.
    """
    found: dict[str, None] = {}
    for site in plan.quantizations:
        fmt = site.steps[-1].format
        is_limited = isinstance(site.tensor, gs.Constant) and saturates(fmt)
        if is_limited and magnitude(site.tensor.values) > fmt.highest:
            found[str(site.tensor.name)] = None
    return [*found]


def weight_method(scheme: Scheme, step: QuantSpec) -> str:
    """Return how a weight on a symmetric integer grid gets its scale."""
    if (method := scheme.weight_method if step.method == AUTO else step.method) != AUTO:
        return method
    if step.axis is None:
        return WEIGHTED
    return MINMAX if step.format.bits > _COARSE else MSE


def weighed_inputs(plan: QuantizationPlan) -> list[TensorAxis]:
    """Return the tensors of whose channels the mean squares are needed, with the axis of the channels."""
    return list(dict.fromkeys((tensor.name, axis) for _, tensor, axis in _weighed(plan)))


def weighed_uses(plan: QuantizationPlan) -> WeighedUses:
    """Return, by the id of a weight, its uses whose errors are weighted."""
    found: WeighedUses = {}
    for use, tensor, axis in _weighed(plan):
        found.setdefault(id(use[0].inputs[use[1]]), []).append((use, tensor, axis))
    return found


def importance(
    uses: WeighedUses, weight: gs.Constant, mean_squares: Mapping[TensorAxis, NDArray[np.float64]]
) -> NDArray[np.float64] | None:
    """Return the importance of each number of a weight, in a shape that broadcasts to the weight's.

    ``uses`` are ``weighed_uses`` of the plan. ``mean_squares`` has one number per channel, by tensor and
    axis. None where what the weight is multiplied
    with was not measured. A weight that several layers share takes the sum of theirs.
    """
    found = [
        dot_products.along_inputs(node, index, weight.shape, mean_squares[tensor.name, axis])
        for (node, index), tensor, axis in uses.get(id(weight), ())
        if (tensor.name, axis) in mean_squares
    ]
    return sum(found[1:], found[0]) if found else None


def _weighed(plan: QuantizationPlan) -> Iterator[WeighedUse]:
    """Yield uses of weights whose errors are weighted, what each multiplies, and its axis of the sum."""
    for node, index, quantization in each_use(plan):
        step = quantization.steps[-1]
        if quantization.role != WEIGHT or not step.needs_range or not step.symmetric:
            continue
        other = node.inputs[1 - index]
        measurable = isinstance(other, gs.Variable) and other.shape is not None
        if measurable and weight_method(plan.scheme, step) == WEIGHTED and plan.specs.is_in_main_graph(other):
            yield (node, index), other, dot_products.sum_axis(node, 1 - index, len(other.shape))
