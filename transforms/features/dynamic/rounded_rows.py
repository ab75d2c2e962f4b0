"""Find the nodes that round rows at run time, each to its own range.

They are written by :mod:`transforms.features.dynamic.rounding`: rows are divided by their largest magnitudes
and rounded on a fixed grid; the outputs of products are multiplied by the magnitudes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.graph.rewire import onnx_op


@dataclass(frozen=True)
class RoundedRows:
    """A tensor ``source`` whose rows are rounded: ``measured`` divide it by ``factor`` [.., 1].

    ``dequantize``: the node that returns the integers to float; ``products``: each product that reads it,
    with the Mul that scales its output by ``factor``.
    """

    source: gs.Tensor
    measured: Sequence[gs.Node]
    factor: gs.Tensor
    dequantize: gs.Node
    products: Sequence[tuple[gs.Node, gs.Node]]

    @property
    def nodes(self) -> Iterator[gs.Node]:
        """The nodes that compute in float only to round rows."""
        yield from self.measured
        yield from (scaled for _, scaled in self.products)


def rounded_rows(graph: gs.Graph) -> Iterator[RoundedRows]:
    """Yield the rounded rows of one graph in the order of nodes; bodies are not entered."""
    for node in graph.nodes:
        if onnx_op(node) == "Div" and (found := _rows(node)) is not None:
            yield found


def _rows(divide: gs.Node) -> RoundedRows | None:
    source, factor = divide.inputs
    measured = _measured(source, factor)
    quantize = only_user(divide, QUANTIZE_LINEAR)
    back = None if quantize is None else only_user(quantize, DEQUANTIZE_LINEAR)
    if not measured or back is None:
        return None
    products = []
    for product in back.outputs[0].outputs:
        scaled = only_user(product, "Mul")
        if product.op != "MatMul" or scaled is None or not any(t is factor for t in scaled.inputs):
            return None
        products.append((product, scaled))
    return RoundedRows(source, [*measured, divide], factor, back, products)


def _measured(source: gs.Tensor, factor: gs.Tensor) -> list[gs.Node]:
    """Return the nodes that compute the largest magnitudes of rows; empty for another tensor."""
    nodes: list[gs.Node] = []
    for op in ("Max", "ReduceMax", "Abs"):
        node = walk.producer(factor)
        if node is None or onnx_op(node) != op or factor is source:
            break
        nodes.insert(0, node)
        factor = node.inputs[0]
    return nodes if factor is source and len(nodes) > 1 else []


def only_user(node: gs.Node, op: str) -> gs.Node | None:
    """Return the only node that reads the output of a node, if it is this standard operator, or None."""
    output = node.outputs[0]
    user = output.outputs[0] if walk.is_read_once(output) else None
    return user if user is not None and onnx_op(user) == op else None
