"""Plan where values are rounded, once for all formats of a conversion, and insert the nodes.

A float32 value is rounded on its way from one node to another, into the graph, and out of it. Every format
of a conversion follows this plan: pairs of Casts, QuantizeLinear and DequantizeLinear, and true bfloat16
therefore compute the same numbers. These values are not rounded:

* inputs that have to stay float32: by the schema (the scales of Resize), or as the scale of a quantization;
* constants of an operator that onnx does not define, whose meaning is unknown;
* inputs of a Relu, or of the Clip of :mod:`transforms.saturate_activations`: rounding commutes with both,
  and their output is rounded;
* values between two nodes that are *kept*: chosen by the user, or arithmetic on shapes and positions, where
  a rounded number would be a wrong size or index (:mod:`transforms.plan.exact_arithmetic`); a kept node also
  reads graph inputs and weights as they are;
* inputs of a tree, a scaler or another operator of ai.onnx.ml, whose thresholds separate the numbers on
  which it was trained;
* in float16, numbers beyond its range (:mod:`transforms.plan.float16_range`);
* values that are rounded already;
* outputs of a body (If, Loop, Scan): the tensor outside, or the input of the next iteration, is rounded
  instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, schemas, walk
from transforms.graph.qdq import EXTENDED_DEQUANTIZE, EXTENDED_QUANTIZE
from transforms.graph.rewire import Insertions
from transforms.graph.selection import Exclusion, NodeSet, resolve
from transforms.plan.graph_facts import GraphFacts
from transforms.plan.rounding import Edge, Rounding

LEARNED = "ai.onnx.ml"
"""Domain of operators that compare or scale numbers by learned values."""


class RoundingPlan:
    """The tensors of a graph to round to an element type; :attr:`roundings` in graph order."""

    def __init__(
        self,
        graph: gs.Graph,
        element: int,
        *,
        exclude: Exclusion = None,
        round_before_relu: bool = False,
        facts: GraphFacts | None = None,
    ) -> None:
        """Plan the graph and its bodies.

        With ``round_before_relu`` inputs of nodes that commute with rounding are rounded, too.
        ``facts``: those of the graph, if already computed.
        """
        facts = facts or GraphFacts(graph)
        self._element, self._round_before_relu = element, round_before_relu
        self._opsets = schemas.versions(graph)
        # rounding commutes with a saturating Clip
        self.excluded = NodeSet(node for node in resolve(exclude, graph) if not is_saturation(node))
        learned = {id(node) for node in walk.nodes(graph) if node.domain == LEARNED}
        beyond = facts.beyond_float16 if element == dtypes.FLOAT16 else ()
        self.exact_nodes = facts.exact.union(learned, beyond)
        self._owners = owners(graph)
        self._found: dict[int, Rounding] = {}
        for node in walk.nodes(graph):
            for index, tensor in enumerate(node.inputs):
                if self._rounds(tensor, node, index):
                    self._rounding(tensor).uses.append((node, index))
        for tensor in graph.outputs:
            _, producer = self._owners.get(id(tensor), (None, None))
            if producer is not None and not self.keeps(producer) and self._is_open(tensor):
                self._rounding(tensor).is_output = True
        self.roundings = list(self._found.values())

    def keeps(self, node: gs.Node) -> bool:
        """Return whether the node is kept: it computes in float32 on float32."""
        return node in self.excluded or id(node) in self.exact_nodes

    def _rounding(self, tensor: gs.Tensor) -> Rounding:
        return self._found.setdefault(id(tensor), Rounding(tensor, *self._owners[id(tensor)]))

    def _is_open(self, tensor: gs.Tensor) -> bool:
        """Return whether the tensor is float32 and not already the result of a rounding."""
        if not dtypes.is_type(tensor, dtypes.FLOAT):
            return False
        return not any(is_upcast(node, self._element) for node in tensor.inputs)

    def _rounds(self, tensor: gs.Tensor, node: gs.Node, index: int) -> bool:
        is_half = is_downcast(node, self._element) or is_upcast(node, self._element)
        is_fixed = is_half or not self._is_open(tensor)
        if is_fixed or schemas.must_stay_float32(node, index, self._opsets):
            return False
        if isinstance(tensor, gs.Constant) and schemas.schema(node, self._opsets) is None:
            return False
        _, producer = self._owners.get(id(tensor), (None, None))
        if self.keeps(node):
            return producer is not None and not self.keeps(producer)
        return self._round_before_relu or not self._commutes(producer, node)

    def _commutes(self, producer: gs.Node | None, node: gs.Node) -> bool:
        """Return whether the node gives the same rounded result from an unrounded input."""
        if is_saturation(node):
            return True
        if node.op != "Relu" or producer is None or self.keeps(producer):
            return False
        uses = walk.uses(node.outputs[0])
        return not any(schemas.must_stay_float32(user, index, self._opsets) for user, index in uses)


def reach(roundings: Iterable[Rounding]) -> tuple[set[Edge], set[int]]:
    """Return the edges that roundings change, and the ``id`` of each model output they change."""
    listed = list(roundings)
    return set().union(*(rounding.edges for rounding in listed)), {
        id(rounding.tensor) for rounding in listed if rounding.is_output
    }


def owners(graph: gs.Graph) -> dict[int, tuple[gs.Graph, gs.Node | None]]:
    """Map the ``id`` of each tensor to its graph and the node that computes it, or None."""
    owner_of: dict[int, tuple[gs.Graph, gs.Node | None]] = {
        key: (owner, None) for key, owner in walk.constant_owners(graph).items()
    }
    for inner in walk.graphs(graph):
        owner_of.update((id(tensor), (inner, None)) for tensor in inner.inputs)
        owner_of.update((id(t), (inner, node)) for node in inner.nodes for t in node.outputs)
    return owner_of


def is_downcast(node: gs.Node, element: int) -> bool:
    """Return whether the node is a downcast: float32 to the element type."""
    if node.op == "Cast":
        return node.attrs.get("to") == element
    return node.op == EXTENDED_QUANTIZE and len(node.inputs) > 2 and dtypes.is_type(node.inputs[2], element)


def is_upcast(node: gs.Node, element: int) -> bool:
    """Return whether the node is an upcast: the element type to float32."""
    return (
        node.op in ("Cast", EXTENDED_DEQUANTIZE)
        and bool(node.inputs)
        and dtypes.is_type(node.inputs[0], element)
    )


def is_neutral(scale: gs.Tensor, zero_point: gs.Tensor) -> bool:
    """Return whether a scale is 1 and a zero point 0, both stored."""
    constant = isinstance(scale, gs.Constant) and isinstance(zero_point, gs.Constant)
    return constant and bool(np.all(scale.values == 1)) and bool(np.all(zero_point.values == 0))


def is_saturation(node: gs.Node) -> bool:
    """Return whether the node is a Clip to the range of bfloat16."""
    bounds = node.inputs[1:3]
    if node.op != "Clip" or len(bounds) < 2 or not all(isinstance(t, gs.Constant) for t in bounds):
        return False
    low, high = (tensor.values for tensor in bounds)
    return low.dtype == np.float32 and bool(low == -dtypes.BFLOAT16_MAX and high == dtypes.BFLOAT16_MAX)


@dataclass(frozen=True)
class RoundingPair:
    """The nodes from float32 to an element type and back: operators, attributes, and further inputs."""

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

    The downcast of a tensor ``t`` outputs ``t_bf16``, the upcast ``t_float32``; an output keeps its name for
    the rounded value, and its producer outputs ``t_raw``. With ``keep_io_types`` false, float32 inputs and
    outputs of the model take the element type and need a single node.
    """
    names, insertions = walk.Names(graph), Insertions()
    inputs = set() if keep_io_types else set(map(id, graph.inputs))

    def _derived(tensor: gs.Tensor, suffix: str, element: int) -> gs.Variable:
        return dtypes.variable(names.derive(tensor.name, suffix), element, tensor)

    def _nodes(rounding: Rounding) -> list[gs.Node]:
        tensor = rounding.tensor
        if id(tensor) in inputs:  # it takes the element type; its readers read the upcast value
            high = _derived(tensor, "float32", dtypes.FLOAT)
            walk.redirect(tensor, high)
            tensor.dtype = pair.element
            return [pair.upcast(names, tensor, high)]
        raw = rounding.split_off(names) if rounding.is_output else tensor
        if rounding.is_output and not keep_io_types:  # it takes the element type, too
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
