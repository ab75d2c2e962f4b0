"""Tensors between convolutions whose channels can be scaled without changing the model, also at a gate."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.channel_scaling import CONVOLUTIONS, PairFinder
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.scaled_layer import Companion

_GATES = frozenset({"Sigmoid", "HardSigmoid"})


@dataclass(frozen=True)
class Span:
    """What a convolution makes of ``channels``, up to the tensor that layers alone read.

    ``tensors`` in between are scaled with it: the last one is read by ``readers``. ``gate``: what has to see
    the numbers as they were, a Sigmoid or HardSigmoid that they are multiplied with, or a HardSwish.
    """

    first: gs.Node
    tensors: list[gs.Tensor]
    readers: list[gs.Node]
    channels: int
    companions: list[Companion] = field(default_factory=list)
    gate: gs.Node | None = None

    @property
    def read(self) -> gs.Tensor:
        """The tensor that the layers read."""
        return self.tensors[-1]

    @property
    def before(self) -> gs.Tensor:
        """The tensor that the gate reads, the same as ``read`` without one."""
        return self.read if self.gate is None else self.gate.inputs[0]


class SpanFinder(PairFinder):
    """Finds tensors that several layers may read, and before which a gate may lie."""

    def spans(self, graph: gs.Graph) -> list[Span]:
        """Return the tensors that convolutions make and layers alone read, in the order of the former."""
        members = {id(node) for node in graph.nodes}
        found = (self._span(node, members) for node in graph.nodes if node.op in CONVOLUTIONS)
        return [span for span in found if span is not None]

    def _span(self, node: gs.Node, members: set[int]) -> Span | None:
        way = self._start(node)
        tensor, scaled, gate = node.outputs[0], list[gs.Tensor](), None
        while way is not None:
            uses = walk.uses(tensor)
            if not uses or id(tensor) in self._fixed or any(id(user) not in members for user, _ in uses):
                return None
            scaled.append(tensor)
            if all(index == 0 and self._ends(way, user) for user, index in uses):
                return Span(node, scaled, [user for user, _ in uses], way.channels, way.companions, gate)
            found = None if gate else self._gate(tensor, [user for user, _ in uses])
            if found is not None:
                gate, tensor = found
            elif len(uses) == 1 and self._passes(way, *uses[0]):
                tensor = uses[0][0].outputs[0]
            else:
                return None
        return None

    def _gate(self, tensor: gs.Tensor, users: list[gs.Node]) -> tuple[gs.Node, gs.Tensor] | None:
        """Return what bounds a factor that a tensor is multiplied with, a function of it, and the product."""
        if any(node in self._exclude or node.domain not in STANDARD_DOMAINS for node in users):
            return None
        if [node.op for node in users] == ["HardSwish"]:
            return users[0], users[0].outputs[0]
        gates = [node for node in users if node.op in _GATES]
        products = [node for node in users if node.op == "Mul"]
        if len(gates) != 1 or len(products) != 1 or len(users) != len(gates + products):
            return None
        made = gates[0].outputs[0]
        is_own = id(made) not in self._fixed and walk.is_read_once(made)
        if not is_own or not any(one is made for one in products[0].inputs):
            return None
        return gates[0], products[0].outputs[0]
