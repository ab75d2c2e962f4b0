"""Channels between convolutions brought to like ranges, also across SiLU and HardSwish."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from transforms.channels.layer_pairs import CONVOLUTIONS, PairFinder
from transforms.channels.scaled_layer import Companion, Exponents, ScaledLayer
from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS, Insertions
from transforms.graph.selection import Choice, Exclusion, NodeSet, resolve
from transforms.scheme.outlier_move import OutlierMove

log = logging.getLogger(__name__)

_GATES = frozenset({"Sigmoid", "HardSigmoid"})
_ALPHA, _BETA = 1 / 6, 0.5  # of the HardSigmoid in a HardSwish


def scale_channels(
    graph: gs.Graph,
    moves: Mapping[str, OutlierMove],
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
) -> int:
    """Divide channels of tensors between convolutions by powers of two; return how many tensors.

    ``moves``, by the name of a tensor of the outermost graph that convolutions (or, after a Flatten, a
    product) alone read, gives the exponent of each channel, 0 for those that it does not name. The
    convolution that makes the tensor takes the factors in, and the layers that read it take them back: bit
    for bit the same model, as long as nothing becomes subnormal or infinite. In between lies what commutes
    with a positive factor (:class:`transforms.channels.layer_pairs.PairFinder`), or one gate: a new Mul
    gives the Sigmoid of x Sigmoid(x), or the HardSigmoid that a HardSwish is made of, the numbers as they
    were. All tensors that change get new names.

    Does nothing to other tensors, to moves with channels that get products of their own, and across nodes in
    ``exclude``. Raises ValueError for a channel that a tensor does not have.
    """
    scaler = _Scaler(graph)
    found = list(_moved(graph, moves, resolve(exclude, graph, nodes)))
    for span, exponents in found:
        scaler.scale(span, exponents)
    scaler.insertions.place(graph)
    return len(found)


@dataclass(frozen=True)
class Span:
    """What a convolution makes of ``channels``, up to the tensor that layers alone read.

    ``tensors`` in between are scaled with it: the last one is read by ``consumers``. ``gate``: what has to
    see the numbers as they were, a Sigmoid or HardSigmoid that they are multiplied with, or a HardSwish.
    """

    first: gs.Node
    tensors: list[gs.Tensor]
    consumers: list[gs.Node]
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
            gated = None if gate else self._gate(tensor, [user for user, _ in uses])
            if gated is not None:
                gate, tensor = gated
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


def _moved(
    graph: gs.Graph, moves: Mapping[str, OutlierMove], exclude: NodeSet
) -> Iterator[tuple[Span, Exponents]]:
    """Yield the spans that are moved, with the exponents of their channels."""
    spans = {str(span.read.name): span for span in SpanFinder(graph, exclude).spans(graph)}
    for name, move in moves.items():
        span = spans.get(name)
        if span is None or move.own:
            log.debug("'%s': no channels that lie between convolutions", name)
            continue
        yield span, move.of_channels(name, span.channels)


class _Scaler:
    def __init__(self, graph: gs.Graph) -> None:
        self._graph, self._names = graph, walk.Names(graph)
        self.insertions = Insertions()

    def scale(self, span: Span, exponents: Exponents) -> None:
        """Scale the channels of one tensor."""
        first = ScaledLayer(span.first)
        first.out_shift += exponents
        first.apply()
        for companion in span.companions:
            companion.apply(exponents)
        for consumer in span.consumers:
            layer = ScaledLayer(consumer)
            layer.in_shift += np.repeat(exponents, len(layer.in_shift) // span.channels)
            layer.apply()
        if span.gate is not None:
            self._restore(span, span.gate, exponents)
        for tensor in span.tensors:
            tensor.name = self._names.derive(tensor.name, "moved")

    def _restore(self, span: Span, gate: gs.Node, exponents: Exponents) -> None:
        """Give a gate the numbers as they were."""
        scaled = gate.inputs[0]
        restored = dtypes.variable(self._names.derive(scaled.name, "restored"), dtypes.FLOAT, scaled)
        places = len(span.first.inputs[1].shape) - 2  # axes after that of the channels
        factors = np.ldexp(np.float32(1), exponents).reshape(-1, *(1,) * places)
        constant = gs.Constant(self._names.derive(scaled.name, "restore"), factors)
        name = self._names.derive(restored.name, "mul")
        multiply = gs.Node("Mul", name, inputs=[scaled, constant], outputs=[restored])
        if gate.op == "HardSwish":
            self._open(gate, scaled)
        gate.inputs[0] = restored
        self.insertions.add(self._graph, walk.producer(scaled), [multiply])

    def _open(self, gate: gs.Node, scaled: gs.Tensor) -> None:
        """Write a HardSwish as the product of a tensor and its HardSigmoid."""
        made = gate.outputs[0]
        factor = dtypes.variable(self._names.derive(made.name, "factor"), dtypes.FLOAT, made)
        gate.op, gate.attrs, gate.outputs = "HardSigmoid", {"alpha": _ALPHA, "beta": _BETA}, [factor]
        name = self._names.derive(gate.name or made.name, "product")
        product = gs.Node("Mul", name, inputs=[scaled, factor], outputs=[made])
        self.insertions.add(self._graph, gate, [product])
