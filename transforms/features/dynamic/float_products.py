"""Rewrite products that round their inputs at run time as the float computation they stand for.

Comparisons of layers then find a product with the float model's name, operator and output, and roundings
before its inputs, as in models with stored ranges. Results are the same up to the order of sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from transforms.features.dynamic.rounded_rows import RoundedRows, only_user, rounded_rows
from transforms.graph import dtypes, walk
from transforms.graph.qdq import DEQUANTIZE_LINEAR
from transforms.graph.rewire import Replacements, drop, onnx_op, position, take_over


@dataclass(frozen=True)
class _Product:
    """The integer product, the node of its result, and the scales of input and weight."""

    integers: gs.Node
    last: gs.Node
    scale: gs.Tensor
    weight_scale: gs.Tensor


def write_float_products(graph: gs.Graph) -> set[int]:
    """Replace each integer product by a MatMul on dequantized numbers.

    Handles the products that :func:`transforms.quantize_dynamic.quantize_dynamic` and ONNX Runtime's
    quantizer write (MatMulInteger, Cast, and Mul by the product of a DynamicQuantizeLinear's scale and a
    constant), and rows with ranges of their own, which are multiplied by their magnitudes before the MatMul.
    Leaves other products alone. Returns the ``id`` of nodes that round rows.
    """
    roundings = set[int]()
    for owner in walk.graphs(graph):
        for rows in list(rounded_rows(owner)):
            roundings.update(map(id, _scale_before(owner, rows, walk.Names(graph))))
        products = [product for node in owner.nodes if (product := _product(node)) is not None]
        replacements, names = Replacements(owner), walk.Names(graph)
        for product in products:
            nodes = _float_product(product, names)
            take_over(nodes[-1], product.last.outputs[0])
            replacements.replace([product.integers, product.last], nodes)
        replacements.place()
    return roundings


def _scale_before(owner: gs.Graph, rows: RoundedRows, names: walk.Names) -> list[gs.Node]:
    """Multiply rows by their magnitudes before the products; return the nodes that now round them."""
    divided = rows.dequantize.outputs[0]
    scaled = dtypes.variable(names.derive(divided.name, "scaled"), dtypes.FLOAT, rows.source)
    for product, after in rows.products:
        product.inputs[0], product.outputs = scaled, []
        take_over(product, after.outputs[0])
    drop(owner, [after for _, after in rows.products])
    multiply = gs.Node("Mul", names.derive(scaled.name, "Mul"), {}, [divided, rows.factor], [scaled])
    owner.nodes.insert(position(owner, rows.dequantize) + 1, multiply)
    return [*rows.measured, multiply]


def _product(node: gs.Node) -> _Product | None:
    """Return the product whose integers a node multiplies, or None for other nodes and forms."""
    if onnx_op(node) != "MatMulInteger" or not isinstance(node.inputs[1], gs.Constant):
        return None
    rounding, cast = walk.producer(node.inputs[0]), only_user(node, "Cast")
    last = None if cast is None else only_user(cast, "Mul")
    if rounding is None or onnx_op(rounding) != "DynamicQuantizeLinear" or cast is None or last is None:
        return None
    factors = [tensor for tensor in last.inputs if tensor is not cast.outputs[0]]
    scales = walk.producer(factors[0]) if len(factors) == 1 else None
    if scales is None or onnx_op(scales) != "Mul":
        return None
    weight_scales = [tensor for tensor in scales.inputs if isinstance(tensor, gs.Constant)]
    if len(weight_scales) != 1 or not any(tensor is rounding.outputs[1] for tensor in scales.inputs):
        return None
    return _Product(node, last, rounding.outputs[1], weight_scales[0])


def _float_product(product: _Product, names: walk.Names) -> list[gs.Node]:
    """Return the nodes that dequantize both operands, and the MatMul, whose output is still missing."""
    numbers, weight, *zeros = product.integers.inputs
    source, stored = walk.producer(numbers), weight.values
    assert source is not None, "a rounding makes the numbers"
    data = dtypes.variable(names.derive(numbers.name, "dequantized"), dtypes.FLOAT, source.inputs[0])
    factor = gs.Variable(names.derive(weight.name, "dequantized"), np.float32, list(weight.shape))
    scales = np.asarray(product.weight_scale.values, np.float32)
    scale = scales.reshape(()) if scales.size == 1 else scales.reshape(-1)
    zero = np.zeros(scale.shape, stored.dtype)
    if len(zeros) > 1 and not zeros[1].is_empty():
        zero = np.ascontiguousarray(
            np.broadcast_to(zeros[1].values.reshape(-1)[: scale.size or 1], scale.shape)
        )
    grid = [
        gs.Constant(names.derive(weight.name, "scale"), scale),
        gs.Constant(names.derive(weight.name, "zero_point"), zero),
    ]
    on_data = [numbers, product.scale, *[z for z in zeros[:1] if not z.is_empty()]]
    axis = {"axis": len(weight.shape) - 1}
    label = product.integers.name
    return [
        gs.Node(DEQUANTIZE_LINEAR, names.derive(label, "input"), {}, on_data, [data]),
        gs.Node(DEQUANTIZE_LINEAR, names.derive(label, "weight"), axis, [weight, *grid], [factor]),
        gs.Node("MatMul", label, {}, [data, factor], []),
    ]
