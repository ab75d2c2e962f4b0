"""Writing a rounding plan into the graph: two nodes for every tensor that is rounded."""

from __future__ import annotations

from typing import Protocol

import onnx
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.plan.rounding_plan import Rounding, RoundingPlan


class RoundingPair(Protocol):
    """How the two halves of a rounding are written."""

    element: int
    suffix: str

    def narrow(self, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        """Return the node from float32 to the element type."""

    def widen(self, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        """Return the node from the element type back to float32."""


def insert_rounding(
    graph: gs.Graph, plan: RoundingPlan, pair: RoundingPair, *, keep_io_types: bool = True
) -> int:
    """Insert the pairs of a plan and return how many tensors are rounded.

    The first half of a tensor ``t`` makes ``t_bf16``, the second ``t_float32``; an output keeps its name for
    the rounded value and its producer makes ``t_raw``. With ``keep_io_types`` false, float32 inputs and
    outputs of the model take the element type and need one half only.
    """
    return _Writer(graph, pair, keep_io_types).write(plan)


class _Writer:
    def __init__(self, graph: gs.Graph, pair: RoundingPair, keep_io_types: bool) -> None:
        self._graph, self._pair, self._keep_io_types = graph, pair, keep_io_types
        self._names = walk.Names(graph)
        self._front: dict[int, list[gs.Node]] = {}
        self._after: dict[int, list[gs.Node]] = {}

    def write(self, plan: RoundingPlan) -> int:
        """Insert the pairs and return how many tensors got one."""
        for rounding in plan.roundings:
            nodes = self._round(rounding)
            if rounding.producer is None:
                self._front.setdefault(id(rounding.home), []).extend(nodes)
            else:
                self._after[id(rounding.producer)] = self._after.get(id(rounding.producer), []) + nodes
        if plan.roundings:
            place(self._graph, self._front, self._after)
        return len(plan.roundings)

    def _round(self, rounding: Rounding) -> list[gs.Node]:
        tensor = rounding.tensor
        if not self._keep_io_types and self._is_model_input(tensor):
            return self._widen_input(rounding)
        raw = self._split_off_raw(rounding) if rounding.is_output else tensor
        if rounding.is_output and not self._keep_io_types:
            return self._narrow_output(rounding, raw)
        low = self._low(tensor)
        high = tensor if rounding.is_output else self._high(tensor)
        rounding.redirect(high)
        return [self._narrow(raw, low), self._widen(low, high)]

    def _widen_input(self, rounding: Rounding) -> list[gs.Node]:
        """The input itself takes the element type; what read it reads its widened value."""
        tensor = rounding.tensor
        high = self._high(tensor)
        walk.redirect(tensor, high)
        tensor.dtype = self._pair.element
        return [self._widen(tensor, high)]

    def _narrow_output(self, rounding: Rounding, raw: gs.Tensor) -> list[gs.Node]:
        """The output itself takes the element type; nodes that read it read its widened value."""
        tensor = rounding.tensor
        nodes = [self._narrow(raw, tensor)]
        tensor.dtype = self._pair.element
        if rounding.uses:
            high = self._high(tensor)
            rounding.redirect(high)
            nodes.append(self._widen(tensor, high))
        return nodes

    def _split_off_raw(self, rounding: Rounding) -> gs.Tensor:
        """Let the producer of an output make a new tensor, for uses that are not rounded to read."""
        tensor, producer = rounding.tensor, rounding.producer
        assert producer is not None
        raw = dtypes.variable(self._names.derive(tensor.name, "raw"), dtypes.FLOAT, tensor)
        rounding.redirect_others(raw)
        walk.replace_output(producer, tensor, raw)
        return raw

    def _low(self, tensor: gs.Tensor) -> gs.Variable:
        return dtypes.variable(self._names.derive(tensor.name, self._pair.suffix), self._pair.element, tensor)

    def _high(self, tensor: gs.Tensor) -> gs.Variable:
        return dtypes.variable(self._names.derive(tensor.name, "float32"), dtypes.FLOAT, tensor)

    def _narrow(self, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        return self._pair.narrow(self._names.derive(target.name, "narrow"), source, target)

    def _widen(self, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        return self._pair.widen(self._names.derive(target.name, "widen"), source, target)

    def _is_model_input(self, tensor: gs.Tensor) -> bool:
        return any(tensor is other for other in self._graph.inputs)


def place(graph: gs.Graph, front: dict[int, list[gs.Node]], after: dict[int, list[gs.Node]]) -> None:
    """Put new nodes where they belong: at the front of a graph or after a node, each given by its ``id``."""
    for inner in list(walk.graphs(graph)):
        placed = front.get(id(inner), [])
        for node in inner.nodes:
            placed.append(node)
            placed += after.get(id(node), [])
        inner.nodes = placed


def import_domains(graph: gs.Graph, domains: set[str]) -> None:
    """Let a model import version 1 of the domains that it does not import yet."""
    present = {opset.domain for opset in graph.import_domains}
    new = [onnx.helper.make_opsetid(domain, 1) for domain in sorted(domains - present - {""})]
    if new:
        graph.import_domains = [*graph.import_domains, *new]
