"""Write a plan with scales, zero points and rounded weights as inputs, to compare settings in one session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.lazy_values import Weight, load_values
from transforms.graph.rewire import Insertions, import_domains
from transforms.plan.qdq_writer import QdqWriter
from transforms.plan.quant_spec import BIAS, QuantSite, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan


@dataclass(frozen=True)
class RangeSite:
    """A quantization of a computed tensor: the names of the inputs for its scale and zero point.

    These names are empty for a format without ranges. ``members``: the tensors that share the scale.
    ``group``: the name of the first member. ``tensor``: the name of the quantized tensor. ``is_operand``:
    whether a dot product reads it.
    """

    scale: str
    zero_point: str
    step: QuantSpec
    members: Sequence[gs.Tensor]
    tensor: str
    is_operand: bool

    @property
    def group(self) -> str:
        """The name of the group."""
        return str(self.members[0].name)


@dataclass(frozen=True)
class UseSite:
    """A use of a computed tensor, and the name of the input that switches it to float.

    ``tensor``: its name. ``consumer``: the index of the consumer, in the order of ``walk.nodes``; None for an
    output of the model.
    """

    switch: str
    tensor: str
    consumer: int | None


@dataclass(frozen=True)
class WeightSite:
    """A constant replaced by an input for its dequantized values: the name of the input, and one of its uses.

    ``stored``: its values, or how they are computed. ``use``: the index of a consumer, in the order of
    ``walk.nodes``, and of its input. ``tensor``: the name of the constant. ``is_operand``: whether a dot
    product reads it. ``bits``: of its format.
    """

    input: str
    stored: Weight
    use: tuple[int, int]
    tensor: str
    is_operand: bool
    bits: float

    @property
    def values(self) -> AnyArray:
        """The values in float32; computed ones take memory only while they are used."""
        return np.asarray(load_values(self.stored), np.float32)


@dataclass(frozen=True)
class BiasSite:
    """A bias replaced by an input: the name of the input, the values, and the index of the consumer."""

    input: str
    values: AnyArray
    node: int


@dataclass(frozen=True)
class SwitchableRanges:
    """A graph with inputs for everything that candidates change, and the list of these inputs."""

    graph: gs.Graph
    ranges: Sequence[RangeSite]
    weights: Sequence[WeightSite]
    biases: Sequence[BiasSite]
    uses: Sequence[UseSite]


def switchable_ranges(plan: QuantizationPlan) -> SwitchableRanges:
    """Write a plan into its graph with inputs in place of scales, zero points and rounded constants.

    Biases stay float, since their grid is as fine as the sums that they are added to. Each use of a computed
    tensor of the main graph gets one more input, a boolean, that leaves it in float.
    """
    return _Writer(plan).write()


class _Writer:
    """Writes one plan into its graph."""

    def __init__(self, plan: QuantizationPlan) -> None:
        self._plan, self._graph = plan, plan.graph
        self._uses: list[UseSite] = []
        self._writer = QdqWriter(plan.graph, plan.scheme)
        self._insertions = Insertions()
        self._ranges: list[RangeSite] = []
        self._weights: list[WeightSite] = []
        self._biases: list[BiasSite] = []
        self._numbers = {id(node): number for number, node in enumerate(walk.nodes(plan.graph))}

    def write(self) -> SwitchableRanges:
        """Write all quantizations of the plan."""
        by_tensor: dict[int, list[QuantSite]] = {}
        for site in self._plan.quantizations:
            by_tensor.setdefault(id(site.tensor), []).append(site)
        groups = {id(site.tensor): self._plan.group(site.tensor) for site in self._plan.quantizations}
        for sites in by_tensor.values():
            if isinstance(sites[0].tensor, gs.Constant):
                for site in sites:
                    self._feed(site)
            else:
                self._write(sites, groups[id(sites[0].tensor)])
        self._insertions.place(self._graph)
        import_domains(self._graph, self._writer.domains)
        return SwitchableRanges(self._graph, self._ranges, self._weights, self._biases, self._uses)

    def _feed(self, site: QuantSite) -> None:
        """Replace a constant by an input."""
        if site.role == BIAS:
            for node, index in site.uses:
                name = self._writer.names.derive(site.tensor.name, "fed")
                variable = dtypes.variable(name, dtypes.FLOAT, site.tensor)
                self._graph.inputs.append(variable)
                values = np.asarray(site.tensor.values, np.float32)
                self._biases.append(BiasSite(name, values, self._numbers[id(node)]))
                node.inputs[index] = variable
            return
        (node, index), tensor = site.uses[0], site.tensor
        name = self._writer.names.derive(tensor.name, "fed")
        variable = dtypes.variable(name, dtypes.FLOAT, tensor)
        self._graph.inputs.append(variable)
        use, read = (self._numbers[id(node)], index), is_dot_product(node) or site.steps[-1].form is not None
        bits = site.steps[-1].format.bits
        self._weights.append(WeightSite(name, tensor._values, use, str(tensor.name), read, bits))
        site.redirect(variable)

    def _write(self, sites: list[QuantSite], group: Sequence[gs.Tensor]) -> None:
        """Write the quantizations of a computed tensor, as :func:`transforms.insert_qdq.insert_qdq` does."""
        sites = sorted(sites, key=lambda site: not site.is_output)
        first = sites[0]
        source = first.split_off(self._writer.names) if first.is_output else first.tensor
        tensor_at: dict[tuple[QuantSpec, ...], gs.Tensor] = {(): source}
        nodes: list[gs.Node] = []
        for site in sites:
            for length, step in enumerate(site.steps, 1):
                steps = site.steps[:length]
                if steps in tensor_at:
                    continue
                is_end = site.is_output and steps == site.steps and not self._is_switched(site)
                target = site.tensor if is_end else None
                pair = self._put(tensor_at[steps[:-1]], step, target, site, group)
                nodes += pair
                tensor_at[steps] = pair[-1].outputs[0]
            if self._is_switched(site):
                nodes += self._choices(site, source, tensor_at[site.steps])
            else:
                site.redirect(tensor_at[site.steps])
        self._insertions.add(first.owner, first.producer, nodes)

    def _put(
        self,
        source: gs.Tensor,
        step: QuantSpec,
        target: gs.Tensor | None,
        site: QuantSite,
        group: Sequence[gs.Tensor],
    ) -> list[gs.Node]:
        neutral = (np.ones((), np.float32), np.zeros((), step.format.dtype)) if step.needs_range else None
        nodes = self._writer.put(source, step, neutral, target)
        scale = zero_point = ""
        if step.needs_range:
            inputs = [
                self._input(source, "scale", np.dtype(np.float32)),
                self._input(source, "zero", step.format.dtype),
            ]
            for node in nodes:
                node.inputs[1], node.inputs[2] = inputs
            scale, zero_point = (str(tensor.name) for tensor in inputs)
        is_operand = any(is_dot_product(node) for node, _ in site.uses)
        if step.needs_range or self._is_switched(site):
            name = str(site.tensor.name)
            self._ranges.append(RangeSite(scale, zero_point, step, group, name, is_operand))
        return nodes

    def _is_switched(self, site: QuantSite) -> bool:
        return self._plan.specs.is_in_main_graph(site.tensor)

    def _choices(self, site: QuantSite, source: gs.Tensor, rounded: gs.Tensor) -> list[gs.Node]:
        """Let each use of a tensor read it in float or rounded; return the nodes that choose."""
        inputs = dict[int, list[int]]()
        readers = {id(node): node for node, _ in site.uses}
        for node, index in site.uses:
            inputs.setdefault(id(node), []).append(index)
        nodes = []
        for key, indices in inputs.items():
            node = self._choice(site, source, rounded, self._numbers[key])
            for index in indices:
                readers[key].inputs[index] = node.outputs[0]
            nodes.append(node)
        if site.is_output:
            nodes.append(self._choice(site, source, rounded, None))
        return nodes

    def _choice(
        self, site: QuantSite, source: gs.Tensor, rounded: gs.Tensor, consumer: int | None
    ) -> gs.Node:
        """Return a Where by which a new input chooses what a consumer reads, or the output if it is None."""
        names, name = self._writer.names, str(site.tensor.name)
        switch = gs.Variable(names.derive(name, "in_float"), np.dtype(np.bool_), ())
        self._graph.inputs.append(switch)
        self._uses.append(UseSite(str(switch.name), name, consumer))
        chosen = dtypes.variable(names.derive(name, "chosen"), dtypes.FLOAT, source)
        target = site.tensor if consumer is None else chosen
        return gs.Node("Where", names.derive(name, "Where"), {}, [switch, source, rounded], [target])

    def _input(self, like: gs.Tensor, suffix: str, dtype: np.dtype) -> gs.Variable:
        variable = gs.Variable(self._writer.names.derive(like.name, f"fed_{suffix}"), dtype, ())
        self._graph.inputs.append(variable)
        return variable
