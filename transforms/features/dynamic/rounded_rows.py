"""Rows that a model rounds at run time, each to its own range, found again in the nodes that do it.

:mod:`transforms.features.dynamic.rounding` writes them: rows are divided by their largest magnitudes and
rounded on a fixed grid; what products make of them is multiplied with the magnitudes.
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

    ``dequantize``: the node that makes floats of the integers; ``products``: each node that reads it, and the
    Mul that gives what it makes the sizes of the rows.
    """

    source: gs.Tensor
    measured: Sequence[gs.Node]
    factor: gs.Tensor
    dequantize: gs.Node
    products: Sequence[tuple[gs.Node, gs.Node]]

    @property
    def nodes(self) -> Iterator[gs.Node]:
        """The nodes that compute in float only because rows are rounded."""
        yield from self.measured
        yield from (scaled for _, scaled in self.products)


def rounded_rows(graph: gs.Graph) -> Iterator[RoundedRows]:
    """Yield what one graph rounds so, in the order of its nodes; not in bodies."""
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
    """Return the nodes that make the largest magnitudes of rows; none for another tensor."""
    nodes: list[gs.Node] = []
    for op in ("Max", "ReduceMax", "Abs"):
        node = walk.producer(factor)
        if node is None or onnx_op(node) != op or factor is source:
            break
        nodes.insert(0, node)
        factor = node.inputs[0]
    return nodes if factor is source and len(nodes) > 1 else []


def only_user(node: gs.Node, op: str) -> gs.Node | None:
    """Return the node that alone reads what a node makes, if it is one of ONNX's operators."""
    made = node.outputs[0]
    user = made.outputs[0] if walk.is_read_once(made) else None
    return user if user is not None and onnx_op(user) == op else None
