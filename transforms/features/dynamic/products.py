"""The products of a plan that round their activations at run time, and their emulation in float."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record
from transforms.features.dynamic.rounding import DividedRows, RunTimeRounding
from transforms.features.dynamic.worth import multiplies_integers
from transforms.graph import dtypes, walk
from transforms.graph.qdq import DEQUANTIZE_LINEAR
from transforms.graph.rewire import Insertions
from transforms.plan.quant_spec import WEIGHT
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.quantize_dynamic import quantize_dynamic
from transforms.runtime_workarounds import sum_before_layernorm


class DynamicProducts:
    """The dynamic products of a plan whose graph is about to be quantized."""

    def __init__(self, plan: QuantizationPlan) -> None:
        """Find the products."""
        self._graph, self._ranges = plan.graph, plan.scheme.dynamic_ranges
        self._nodes = dynamic_products(plan)

    def write(self, done: Record) -> None:
        """Rewrite them to multiply integers, and count them."""
        if not self._nodes:
            return
        if count := quantize_dynamic(self._graph, ranges=self._ranges, nodes=self._nodes):
            done.changes["products that round their inputs at run time"] = count
            sum_before_layernorm(self._graph)

    def emulate(self) -> None:
        """Round their inputs and return to float, while the products stay float."""
        round_at_run_time(self._graph, self._nodes, self._ranges)


def dynamic_products(plan: QuantizationPlan) -> list[gs.Node]:
    """Return the products with dynamic formats and integer weights, including those in bodies."""
    return [node for node in walk.nodes(plan.graph) if _is_dynamic(plan, node)]


def _is_dynamic(plan: QuantizationPlan, node: gs.Node) -> bool:
    if not plan.specs.formats[node].dynamic or not multiplies_integers(node, plan.scheme):
        return False
    weight, role = plan.specs.of_input(node, 1)
    return weight is not None and role == WEIGHT and weight.format.is_integer


def round_at_run_time(graph: gs.Graph, products: Sequence[gs.Node], ranges: str) -> None:
    """Insert before dynamic products the rounding of their inputs and the way back to float.

    The products stay float, so that their weights may be fed; results are the same up to the order of sums.
    ``ranges``: ``row`` or ``tensor``, as in the scheme.
    """
    names, insertions = walk.Names(graph), Insertions()
    rounding = RunTimeRounding(graph, names, ranges)
    reading = set(map(id, products))
    for owner in walk.graphs(graph):
        rounded: dict[int, gs.Tensor] = {}
        for node in (node for node in owner.nodes if id(node) in reading):
            tensor = node.inputs[0]
            if id(tensor) not in rounded:
                nodes = _round_trip(tensor, rounding)
                insertions.add(owner, _producer_in(owner, tensor), nodes)
                rounded[id(tensor)] = nodes[-1].outputs[0]
            node.inputs[0] = rounded[id(tensor)]
    insertions.place(graph)


def _producer_in(owner: gs.Graph, tensor: gs.Tensor) -> gs.Node | None:
    """Return the node that makes a tensor if it belongs to a graph, or None for an outer tensor."""
    producer = walk.producer(tensor)
    return producer if any(producer is node for node in owner.nodes) else None


def _round_trip(tensor: gs.Tensor, rounding: RunTimeRounding) -> list[gs.Node]:
    """Return the nodes that round a tensor and return it to float, in order."""
    operand, names = rounding.round(tensor), rounding.names
    if isinstance(operand, DividedRows):
        op, inputs = "Mul", [operand.divided, operand.factor]
    else:
        op, inputs = DEQUANTIZE_LINEAR, [operand.numbers, operand.scale, operand.zero_point]
    result = dtypes.variable(names.derive(tensor.name, "rounded"), dtypes.FLOAT, tensor)
    return [*operand.nodes, gs.Node(op, names.derive(result.name, op), {}, inputs, [result])]
