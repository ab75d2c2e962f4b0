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
    names, insertions = walk.Names(graph), Insertions()
    inputs = set() if keep_io_types else set(map(id, graph.inputs))

    def _derived(tensor: gs.Tensor, suffix: str, element: int) -> gs.Variable:
        return dtypes.variable(names.derive(tensor.name, suffix), element, tensor)

    def _nodes(rounding: Rounding) -> list[gs.Node]:
        tensor = rounding.tensor
        if id(tensor) in inputs:  # takes the element type itself; what read it reads its widened value
            high = _derived(tensor, "float32", dtypes.FLOAT)
            walk.redirect(tensor, high)
            tensor.dtype = pair.element
            return [pair.upcast(names, tensor, high)]
        raw = rounding.split_off(names) if rounding.is_output else tensor
        if rounding.is_output and not keep_io_types:  # takes the element type itself, too
            nodes = [pair.downcast(names, raw, tensor)]
            tensor.dtype = pair.element
            if rounding.uses:
                high = _derived(tensor, "float32", dtypes.FLOAT)
                rounding.redirect(high)
                nodes.append(pair.upcast(names, tensor, high))
            return nodes
        low = _derived(tensor, pair.suffix, pair.element)
        high = tensor if rounding.is_output else _derived(tensor, "float32", dtypes.FLOAT)
        rounding.redirect(high)
        return [pair.downcast(names, raw, low), pair.upcast(names, low, high)]

    for rounding in plan.roundings:
        insertions.add(rounding.owner, rounding.producer, _nodes(rounding))
    if plan.roundings:
        insertions.place(graph)
    return len(plan.roundings)


def import_domains(graph: gs.Graph, domains: set[str]) -> None:
    """Let a model import version 1 of the domains that it does not import yet."""
    present = {opset.domain for opset in graph.import_domains}
    new = [onnx.helper.make_opsetid(domain, 1) for domain in sorted(domains - present - {""})]
    if new:
        graph.import_domains = [*graph.import_domains, *new]
