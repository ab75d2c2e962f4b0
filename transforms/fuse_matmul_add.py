"""A matrix product and the addition of its bias fused to a Gemm."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

import onnx
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, shapes, walk
from transforms.graph.rewire import drop, onnx_op
from transforms.graph.selection import Choice, Exclusion, resolve

log = logging.getLogger(__name__)

OPSET = 7
"""First opset whose Gemm broadcasts a bias as Add does."""

_TYPES = (dtypes.FLOAT, dtypes.FLOAT16, int(onnx.TensorProto.DOUBLE))
"""The types for which ONNX Runtime has a Gemm."""


def fuse_matmul_add(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Replace each MatMul of two matrices and the Add after it by a Gemm; return how many.

    The added operand may be computed, and may be on either side. The Gemm has the name of the MatMul and
    computes the same sums in an order that the runtime chooses, so results are equal up to rounding.
    :func:`transforms.split_gemm.split_gemm` is the inverse; :func:`transforms.fuse_matmul.fuse_matmul` merges
    products that share an input. Bodies of If, Loop and Scan are included.

    Does nothing below opset 7, unless both factors are known to have two axes (a Gemm takes no others) and
    the bias is known to broadcast to the product and not beyond, if another node reads the product or it is
    an output, for types other than float16, float32 and double, and if one of the nodes is in ``exclude`` or
    not in ``nodes``.
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    excluded, outputs, count = resolve(exclude, graph, nodes), walk.outputs(graph), 0
    for inner in walk.graphs(graph):
        inside, gone = {id(node) for node in inner.nodes if node not in excluded}, list[gs.Node]()
        for add in inner.nodes:
            for product, bias in _products(add, inside):
                reason = _why_not(product, bias, outputs)
                if reason is None:
                    _fuse(product, add, bias)
                    gone.append(product)
                    break
                log.debug("'%s' stays: %s", product.name, reason)
        drop(inner, gone)
        count += len(gone)
    return count


def _products(add: gs.Node, inside: Collection[int]) -> Iterator[tuple[gs.Node, gs.Tensor]]:
    """Yield the MatMuls that an Add reads, each with the other operand."""
    for index, tensor in enumerate(add.inputs if onnx_op(add) == "Add" and id(add) in inside else ()):
        maker = walk.producer(tensor)
        if maker is not None and onnx_op(maker) == "MatMul" and id(maker) in inside:
            yield maker, add.inputs[1 - index]


def _why_not(product: gs.Node, bias: gs.Tensor, outputs: set[int]) -> str | None:
    """Return the reason why a product and the Add of its bias cannot become a Gemm, or None."""
    result = product.outputs[0]
    if not walk.is_read_once(result) or id(result) in outputs:
        return f"'{result.name}' is read by other nodes, or an output"
    factors = [shapes.shape_of(tensor) for tensor in product.inputs]
    if any(shape is None or len(shape) != 2 for shape in factors):
        return "its factors are not known to have two axes"
    if any(dtypes.element_type(tensor) not in _TYPES for tensor in (*product.inputs, bias)):
        return "its type is unknown, or none of a Gemm"
    sizes, added = (factors[0][0], factors[1][1]), shapes.shape_of(bias)  # type: ignore[index]
    if added is None or len(added) > 2:
        return f"the shape of '{bias.name}' is unknown, or not that of a matrix"
    pairs = zip(added[::-1], sizes[::-1], strict=False)
    if not all(size == 1 or shapes.are_same(size, needed) for size, needed in pairs):
        return f"'{bias.name}' is not known to broadcast to the product"
    return None


def _fuse(product: gs.Node, add: gs.Node, bias: gs.Tensor) -> None:
    """Turn the Add into the Gemm: its inputs exist at its place in the graph."""
    add.op, add.name, add.attrs = "Gemm", product.name, {}
    add.inputs = [*product.inputs, bias]
