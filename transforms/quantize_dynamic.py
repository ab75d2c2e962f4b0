"""Products with stored 8-bit weights that multiply integers: inputs are quantized at run time.

By rows: each row is divided by its largest magnitude; QuantizeLinear and DequantizeLinear on a fixed grid
follow, which ONNX Runtime fuses with the MatMul and the DequantizeLinear of the weight to
MatMulIntegerToFloat; a Mul scales the rows back. By tensor: ONNX's DynamicQuantizeLinear takes the range of a
whole tensor, extended to zero; MatMulInteger multiplies by the weight; a Cast and a Mul by the product of
both scales turn the sums into floats. ONNX Runtime fuses these to DynamicQuantizeMatMul.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray
from ops.legal_names import refuse_unknown
from transforms.features.dynamic.rounding import RANGES, ROW, DividedRows, RoundedTensor, RunTimeRounding
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.dot_products import bias, channel_axis, is_dot_product
from transforms.graph.lazy_values import Weight, constant, derived
from transforms.graph.qdq import DEQUANTIZE_LINEAR
from transforms.graph.rewire import Replacements, onnx_op, take_over
from transforms.graph.selection import Choice, Exclusion, resolve

_STORED = frozenset({"int8", "uint8"})
_FIRST_OPSET = 11  # of DynamicQuantizeLinear
_LEAST_RANK = 2


def quantize_dynamic(
    graph: gs.Graph, *, ranges: str = ROW, nodes: Choice | None = None, exclude: Exclusion = None
) -> int:
    """Let each MatMul and Gemm that multiplies by dequantized integers of 8 bits multiply integers.

    Also in bodies. Returns how many. The float input is rounded to uint8 once for all products of one graph
    that read it, and multiplied by the stored integers of the weight, which have one scale and zero point, or
    one of each per output. ``ranges``: ``row`` for a range of each row, along the last axis, so that results
    do not depend on padding and batch; ``tensor`` for a common range of all rows, also used for a single row.
    A Gemm's ``alpha`` is folded into the scales, its bias becomes an Add.

    Does nothing for a product of two computed operands or with a vector, for other weights, such as those in
    blocks or with scales along the sum, for a Gemm that transposes its input or scales a bias that is not
    constant, for inputs of types other than float32, for dequantized inputs, whose integers a kernel already
    uses, and for nodes in ``exclude``.
    """
    refuse_unknown(ranges, RANGES, "ranges")
    if not walk.reaches(graph, _FIRST_OPSET, __name__):
        return 0
    excluded = resolve(exclude, graph, nodes)
    writer, count = _Writer(graph, ranges), 0
    for owner in walk.graphs(graph):
        chosen = [node for node in owner.nodes if node not in excluded]
        products = [(node, weight) for node in chosen if (weight := _weight(node)) is not None]
        count += writer.write(owner, products)
    return count


@dataclass(frozen=True)
class _Weight:
    """A dequantized matrix [.., K, N], or its transpose, and scales and zero points: [N], or one of each."""

    node: gs.Node
    integers: Weight
    scale: NDArray[np.float32]
    zero_point: AnyArray
    is_turned: bool


def _weight(node: gs.Node) -> _Weight | None:
    """Return the weight of a product that MatMulInteger can compute, or None."""
    if not is_dot_product(node) or node.op not in ("MatMul", "Gemm") or not _is_plain(node):
        return None
    dequantize = walk.producer(node.inputs[1])
    if (
        dequantize is None
        or onnx_op(dequantize) != DEQUANTIZE_LINEAR
        or dequantize.attrs.get("block_size", 0)
    ):
        return None
    if not all(isinstance(tensor, gs.Constant) for tensor in dequantize.inputs):
        return None
    stored, is_turned = dequantize.inputs[0]._values, bool(node.attrs.get("transB", 0))
    scale, *rest = (load(tensor) for tensor in dequantize.inputs[1:])
    if stored.dtype.name not in _STORED or scale.dtype != np.float32 or len(stored.shape) < _LEAST_RANK:
        return None
    if scale.size > 1 and not _is_per_output(node, stored.shape, dequantize):
        return None
    zero = rest[0] if rest else np.zeros(scale.shape, stored.dtype)
    return _Weight(dequantize, stored, scale.reshape(-1), zero.reshape(-1), is_turned)


def _is_per_output(node: gs.Node, shape: tuple[int, ...], dequantize: gs.Node) -> bool:
    axis = channel_axis(node, 1, len(shape))
    return axis is not None and int(dequantize.attrs.get("axis", 1)) % len(shape) == axis


def _is_plain(node: gs.Node) -> bool:
    """Return whether a product reads a float tensor of rank 2 or more, and an Add can add its bias."""
    data = node.inputs[0]
    is_computed = not isinstance(data, gs.Constant) and dtypes.is_type(data, dtypes.FLOAT)
    maker = walk.producer(data)
    if not is_computed or (maker is not None and maker.op == DEQUANTIZE_LINEAR):
        return False
    if node.op == "MatMul":
        return data.shape is not None and len(data.shape) >= _LEAST_RANK
    is_scaled = bias(node) is not None and float(node.attrs.get("beta", 1)) != 1
    return not node.attrs.get("transA", 0) and not (is_scaled and not isinstance(bias(node), gs.Constant))


class _Writer:
    def __init__(self, graph: gs.Graph, ranges: str) -> None:
        self._names = walk.Names(graph)
        self._rounding = RunTimeRounding(graph, self._names, ranges)
        self._turned: dict[int, tuple[gs.Node, gs.Constant]] = {}  # a node that is kept keeps its id
        self._matrices: dict[tuple[int, bool, float], gs.Tensor] = {}

    def write(self, owner: gs.Graph, products: list[tuple[gs.Node, _Weight]]) -> int:
        """Write the products of one graph; return how many."""
        self._matrices.clear()
        replacements, rounded = Replacements(owner), dict[int, RoundedTensor | DividedRows]()
        for node, weight in products:
            data, written = node.inputs[0], list[gs.Node]()
            if id(data) not in rounded:
                rounded[id(data)] = self._rounding.round(data)
                written += rounded[id(data)].nodes
            operand = rounded[id(data)]
            if isinstance(operand, DividedRows):
                written += self._of_rows(node, weight, operand)
            else:
                written += self._of_tensor(node, weight, operand)
            written += self._bias(node, written[-1])
            take_over(written[-1], node.outputs[0])
            replacements.replace([node], written)
        replacements.place()
        return len(products)

    def _of_rows(self, node: gs.Node, weight: _Weight, operand: DividedRows) -> list[gs.Node]:
        """Return the nodes of a product with a range for each row, the last one without an output.

        The MatMul keeps the product's name, which identifies the layer.
        """
        result, label = node.outputs[0], node.name
        key = id(weight.node), weight.is_turned, float(node.attrs.get("alpha", 1))
        dequantized = [] if key in self._matrices else self._matrix(node, weight)
        matrix = self._matrices.setdefault(key, dequantized[-1].outputs[0] if dequantized else node.inputs[1])
        divided = dtypes.variable(self._names.derive(result.name, "divided"), dtypes.FLOAT, result)
        return [
            *dequantized,
            gs.Node("MatMul", label, {}, [operand.divided, matrix], [divided]),
            gs.Node("Mul", self._names.derive(label, "scaled"), {}, [divided, operand.factor], []),
        ]

    def _matrix(self, node: gs.Node, weight: _Weight) -> list[gs.Node]:
        """Return the node that dequantizes a Gemm's weight in the layout of a MatMul; none if unchanged."""
        if not weight.is_turned and node.attrs.get("alpha", 1) == 1:
            return []
        scale, zero_point = (
            values.reshape(()) if values.size == 1 else values
            for values in (_scales(node, weight), weight.zero_point)
        )
        integers, stem = self._integers(weight), weight.node.inputs[0].name
        grid = [
            gs.Constant(self._names.derive(stem, "scale"), scale),
            gs.Constant(self._names.derive(stem, "zero_point"), zero_point),
        ]
        matrix = gs.Variable(self._names.derive(stem, "matrix"), np.float32, list(integers.shape))
        label = self._names.derive(matrix.name, DEQUANTIZE_LINEAR)
        return [gs.Node(DEQUANTIZE_LINEAR, label, {"axis": 1}, [integers, *grid], [matrix])]

    def _of_tensor(self, node: gs.Node, weight: _Weight, operand: RoundedTensor) -> list[gs.Node]:
        """Return the nodes of a product with one range for the tensor, the last one without an output.

        The MatMulInteger keeps the product's name, which identifies the layer.
        """
        result, label = node.outputs[0], node.name
        inputs = [operand.numbers, self._integers(weight), operand.zero_point, *self._zero_points(weight)]
        sums = gs.Variable(self._names.derive(result.name, "integers"), np.int32, result.shape)
        floats = dtypes.variable(self._names.derive(result.name, "floats"), dtypes.FLOAT, result)
        source = weight.node.inputs[0].name
        weight_scale = gs.Constant(self._names.derive(source, "scale"), _scales(node, weight))
        scales = gs.Variable(self._names.derive(result.name, "scale"), np.float32, list(weight_scale.shape))
        return [
            gs.Node("MatMulInteger", label, {}, inputs, [sums]),
            gs.Node("Cast", self._names.derive(label, "cast"), {"to": dtypes.FLOAT}, [sums], [floats]),
            gs.Node("Mul", self._names.derive(label, "scale"), {}, [operand.scale, weight_scale], [scales]),
            gs.Node("Mul", self._names.derive(label, "scaled"), {}, [floats, scales], []),
        ]

    def _bias(self, node: gs.Node, last: gs.Node) -> list[gs.Node]:
        """Return an Add of a Gemm's bias, if any, to the output of the last node; it has no output yet."""
        added, result = bias(node), node.outputs[0]
        if added is None:
            return []
        last.outputs = [dtypes.variable(self._names.derive(result.name, "product"), dtypes.FLOAT, result)]
        inputs = [last.outputs[0], self._scaled_bias(node, added)]
        return [gs.Node("Add", self._names.derive(node.name, "bias"), {}, inputs, [])]

    def _integers(self, weight: _Weight) -> gs.Tensor:
        """Return the integers [.., K, N]: those of the DequantizeLinear, or their transpose."""
        source = weight.node.inputs[0]
        if not weight.is_turned:
            return source
        if id(weight.node) in self._turned:
            return self._turned[id(weight.node)][1]
        turned = derived(
            weight.integers,
            lambda values: np.ascontiguousarray(values.T),
            weight.integers.dtype,
            tuple(reversed(weight.integers.shape)),
        )
        stored = constant(self._names.derive(source.name, "turned"), turned)
        self._turned[id(weight.node)] = weight.node, stored
        return stored

    def _zero_points(self, weight: _Weight) -> list[gs.Tensor]:
        """Return the zero points, none if they are 0; one for all outputs if they are equal."""
        if not weight.zero_point.any():
            return []
        first = weight.zero_point[0]
        values = first.reshape(()) if (weight.zero_point == first).all() else weight.zero_point
        return [gs.Constant(self._names.derive(weight.node.inputs[0].name, "zero_point"), values)]

    def _scaled_bias(self, node: gs.Node, added: gs.Tensor) -> gs.Tensor:
        beta = np.float32(node.attrs.get("beta", 1))
        return (
            added if beta == 1 else gs.Constant(self._names.derive(added.name, "scaled"), beta * load(added))
        )


def _scales(node: gs.Node, weight: _Weight) -> NDArray[np.float32]:
    """Return the scales of a weight times a Gemm's alpha: [1], or [N]."""
    return weight.scale * np.float32(node.attrs.get("alpha", 1))
