"""Writing a rounding plan into the graph: two nodes for every tensor that is rounded."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import Insertions
from transforms.plan.rounding_plan import Rounding, RoundingPlan


@dataclass(frozen=True)
class RoundingPair:
    """The nodes from float32 to an element type and back: operators, attributes, what both read besides."""

    element: int
    suffix: str
    operators: tuple[str, str]
    attributes: tuple[dict[str, int], dict[str, int]] = ({}, {})
    inputs: tuple[gs.Tensor, ...] = ()
    domain: str | None = None

    def downcast(self, names: walk.Names, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        """Return the node from float32 to the element type."""
        return self._node(0, names.derive(target.name, "narrow"), source, target)

    def upcast(self, names: walk.Names, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        """Return the node from the element type back to float32."""
        return self._node(1, names.derive(target.name, "widen"), source, target)

    def _node(self, which: int, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        attributes, inputs = dict(self.attributes[which]), [source, *self.inputs]
        return gs.Node(self.operators[which], name, attributes, inputs, [target], self.domain)


def insert_rounding(
    graph: gs.Graph, plan: RoundingPlan, pair: RoundingPair, *, keep_io_types: bool = True
) -> int:
    """Insert the pairs of a plan and return how many tensors are rounded.

    The downcast of a tensor ``t`` makes ``t_bf16``, the upcast ``t_float32``; an output keeps its name for
    the rounded value and its producer makes ``t_raw``. With ``keep_io_types`` false, float32 inputs and
    outputs of the model take the element type and need one node only.
    """
    return _Writer(graph, pair, keep_io_types).write(plan)


class _Writer:
    def __init__(self, graph: gs.Graph, pair: RoundingPair, keep_io_types: bool) -> None:
        self._graph, self._pair, self._keep_io_types = graph, pair, keep_io_types
        self._names = walk.Names(graph)
        self._insertions = Insertions()

    def write(self, plan: RoundingPlan) -> int:
        """Insert the pairs and return how many tensors got one."""
        for rounding in plan.roundings:
            self._insertions.add(rounding.owner, rounding.producer, self._round(rounding))
        if plan.roundings:
            self._insertions.place(self._graph)
        return len(plan.roundings)

    def _round(self, rounding: Rounding) -> list[gs.Node]:
        tensor = rounding.tensor
        if not self._keep_io_types and self._is_model_input(tensor):
            return self._upcast_input(rounding)
        raw = rounding.split_off(self._names) if rounding.is_output else tensor
        if rounding.is_output and not self._keep_io_types:
            return self._downcast_output(rounding, raw)
        low = self._low(tensor)
        high = tensor if rounding.is_output else self._high(tensor)
        rounding.redirect(high)
        return [self._pair.downcast(self._names, raw, low), self._pair.upcast(self._names, low, high)]

    def _upcast_input(self, rounding: Rounding) -> list[gs.Node]:
        """The input itself takes the element type; what read it reads its widened value."""
        tensor = rounding.tensor
        high = self._high(tensor)
        walk.redirect(tensor, high)
        tensor.dtype = self._pair.element
        return [self._pair.upcast(self._names, tensor, high)]

    def _downcast_output(self, rounding: Rounding, raw: gs.Tensor) -> list[gs.Node]:
        """The output itself takes the element type; nodes that read it read its widened value."""
        tensor = rounding.tensor
        nodes = [self._pair.downcast(self._names, raw, tensor)]
        tensor.dtype = self._pair.element
        if rounding.uses:
            high = self._high(tensor)
            rounding.redirect(high)
            nodes.append(self._pair.upcast(self._names, tensor, high))
        return nodes

    def _low(self, tensor: gs.Tensor) -> gs.Variable:
        return dtypes.variable(self._names.derive(tensor.name, self._pair.suffix), self._pair.element, tensor)

    def _high(self, tensor: gs.Tensor) -> gs.Variable:
        return dtypes.variable(self._names.derive(tensor.name, "float32"), dtypes.FLOAT, tensor)

    def _is_model_input(self, tensor: gs.Tensor) -> bool:
        return any(tensor is other for other in self._graph.inputs)


def import_domains(graph: gs.Graph, domains: set[str]) -> None:
    """Let a model import version 1 of the domains that it does not import yet."""
    present = {opset.domain for opset in graph.import_domains}
    new = [onnx.helper.make_opsetid(domain, 1) for domain in sorted(domains - present - {""})]
    if new:
        graph.import_domains = [*graph.import_domains, *new]
