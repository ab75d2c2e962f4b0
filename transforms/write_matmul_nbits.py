"""Products with stored integers in blocks, written as ONNX Runtime's MatMulNBits.

com.microsoft's MatMulNBits, version 1, computes A [.., K] times the transpose of B [N, K], which is stored
as unsigned integers of 2, 4 or 8 bits, packed along K, [N, ceil(K / block), block * bits / 8], the first of
the numbers of a byte in its low bits. Each block has a scale [N, ceil(K / block)], and a zero point packed
likewise, which is the middle, 2^(bits - 1), if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops import FORMATS
from ops.array_types import AnyArray
from ops.integer_blocks import block_rows, pack_numbers, scale_shape
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.dot_products import bias, is_dot_product, sum_axis
from transforms.graph.lazy_values import Weight, constant, derived
from transforms.graph.qdq import MATMUL_NBITS
from transforms.graph.rewire import (
    RUNTIME_DOMAIN,
    Insertions,
    Replacements,
    import_domains,
    onnx_op,
    take_over,
)

OPERATOR = MATMUL_NBITS
_STORED = frozenset({"int2", "uint2", "int4", "uint4", "int8", "uint8"})
_LEAST_BLOCK = 16
BIAS = 5  # the input of that name
ROUNDED = 4
LEVELS = {1: "float32", ROUNDED: "int8"}
"""Values of accuracy_level, and what a kernel may round the inputs to."""

_QUICK = {2: ROUNDED, 4: 1, 8: ROUNDED}
"""By bits, a level that decodes SmolLM2 in at most 0.7 of the time of float. Level 1 takes 5.6 times as long
as float with 8 bits (``python -m tests.benchmarks.bench_language``), and longer with 2 bits."""


def write_matmul_nbits(graph: gs.Graph, *, accuracy_level: int | None = None) -> int:
    """Put MatMulNBits in the place of each MatMul and Gemm that multiplies by dequantized blocks.

    Also in bodies. Returns how many. Does nothing for a weight that is not a matrix of 2, 4 or 8 bits on the
    right side with blocks along the sum, of a power of two from 16 on, for inputs that are vectors or of
    unknown rank, and for a Gemm with a transposed input, factors, or a bias that is not one number for each
    output.

    ``accuracy_level`` 4 lets kernels round inputs to int8, with a scale for each block, which is faster; with
    1 they stay float32. Without one it is 1 for weights of 4 bits, and 4 for those of 2 and 8, whose other
    kernels are slow. With 1, scales that are all numbers of float16 are stored so.

    Raises ValueError for another level.
    """
    if accuracy_level not in (None, *LEVELS):
        raise ValueError(f"accuracy_level is {accuracy_level}, legal are {', '.join(map(str, LEVELS))}")
    changed, writer = 0, _Writer(graph, accuracy_level)
    for owner in walk.graphs(graph):
        products = [(node, weight) for node in owner.nodes if (weight := _weight(node)) is not None]
        replacements = Replacements(owner)
        for node, weight in products:
            before, new = writer.product(node, weight)
            take_over(new, node.outputs[0])
            replacements.replace([node], [*before, new])
        replacements.place()
        changed += len(products)
    writer.insertions.place(graph)
    if changed:
        import_domains(graph, {RUNTIME_DOMAIN})
    return changed


def quick_level(bits: int) -> int:
    """Return the default accuracy_level for weights of ``bits`` bits, which is fast enough."""
    return _QUICK[bits]


@dataclass(frozen=True)
class _Weight:
    """A dequantized matrix: its integers as they are stored, and the node that reads them.

    They are [N, K], or [K, N] if they are turned; scales and zero points are [N, B].
    """

    node: gs.Node
    integers: Weight
    scale: NDArray[np.float32]
    zero_point: AnyArray
    block: int
    is_turned: bool

    @property
    def size(self) -> tuple[int, int]:
        """Outputs N and inputs K."""
        first, second = self.integers.shape
        return (second, first) if self.is_turned else (first, second)

    @property
    def bits(self) -> int:
        """Bits of an integer."""
        return int(FORMATS[self.integers.dtype.name].bits)

    @property
    def lowest(self) -> int:
        """The integer that is stored as 0."""
        return int(FORMATS[self.integers.dtype.name].lowest)


def _weight(node: gs.Node) -> _Weight | None:
    """Return the weight of a product that MatMulNBits can compute, or None."""
    if not is_dot_product(node) or node.op not in ("MatMul", "Gemm") or not is_plain(node):
        return None
    dequantize = walk.producer(node.inputs[1])
    if dequantize is None or onnx_op(dequantize) != "DequantizeLinear":
        return None
    if not all(isinstance(tensor, gs.Constant) for tensor in dequantize.inputs):
        return None
    scale, *rest = (load(tensor) for tensor in dequantize.inputs[1:])
    stored = dequantize.inputs[0]._values
    block, axis = int(dequantize.attrs.get("block_size", 0)), int(dequantize.attrs.get("axis", 1))
    is_power = block >= _LEAST_BLOCK and block & (block - 1) == 0
    if (
        len(stored.shape) != 2
        or stored.dtype.name not in _STORED
        or scale.dtype != np.float32
        or not is_power
    ):
        return None
    summed = sum_axis(node, 1, 2)
    if axis % 2 != summed or scale.shape != scale_shape(stored.shape, summed, block):
        return None
    zero = rest[0] if rest else np.zeros(scale.shape, stored.dtype)
    if not summed:
        scale, zero = scale.T, zero.T
    return _Weight(dequantize, stored, scale, zero, block, not summed)


def is_plain(node: gs.Node) -> bool:
    """Return whether a float32 product has no vector, factors, transposed input or unusual bias."""
    data, weight = node.inputs[0], node.inputs[1]
    if not dtypes.is_type(data, dtypes.FLOAT):
        return False
    if node.op == "MatMul":
        return data.shape is not None and len(data.shape) > 1
    added, attrs = bias(node), node.attrs
    factors = ["alpha"] if added is None else ["alpha", "beta"]
    has_factors = any(float(attrs.get(name, 1)) != 1 for name in factors)
    if attrs.get("transA", 0) or has_factors or weight.shape is None:
        return False
    outputs = weight.shape[0 if attrs.get("transB", 0) else 1]
    return added is None or (added.shape is not None and list(added.shape) == [outputs])


class _Writer:
    """Writes products; those that read one dequantized weight share what is stored of it."""

    def __init__(self, graph: gs.Graph, level: int | None) -> None:
        self._graph, self._names, self._level = graph, walk.Names(graph), level
        self._stored: dict[int, tuple[gs.Node, list[gs.Tensor]]] = {}  # a node that is kept keeps its id
        self.insertions = Insertions()

    def product(self, node: gs.Node, weight: _Weight) -> tuple[list[gs.Node], gs.Node]:
        """Return nodes to place before a MatMulNBits, and the MatMulNBits, without an output."""
        before: list[gs.Node] = []
        is_shared, key = not walk.is_read_once(weight.node.outputs[0]), id(weight.node)
        if key in self._stored:
            stored = self._stored[key][1]
        else:
            stored, before = self._inputs(weight)
            if is_shared:
                self._stored[key] = weight.node, stored
                self.insertions.add(self._graph, None, before)
                before = []
        outputs, summed = weight.size
        numbers = {"K": summed, "N": outputs, "bits": weight.bits, "block_size": weight.block}
        return before, matmul_nbits(node, stored, numbers, self._level)

    def _inputs(self, weight: _Weight) -> tuple[list[gs.Tensor], list[gs.Node]]:
        """Return packed integers, scales and any zero points, and the nodes that compute them."""
        source, names = weight.node.inputs[0].name, self._names
        packed = constant(names.derive(source, "packed"), _packed(weight))
        scale = np.ascontiguousarray(weight.scale)
        scales, casts = kernel_scales(scale, source, names, self._level or _QUICK[weight.bits])
        stored = [packed, scales]
        zeros = weight.zero_point.astype(np.int64) - weight.lowest
        if (zeros != 1 << (weight.bits - 1)).any():
            zero_points = pack_numbers(zeros.astype(np.uint8), weight.bits)
            stored.append(gs.Constant(names.derive(source, "zero_points"), zero_points))
        return stored, casts


def matmul_nbits(node: gs.Node, stored: list[gs.Tensor], attrs: dict[str, int], level: int | None) -> gs.Node:
    """Return the MatMulNBits that takes the place of a product, without an output.

    ``stored`` are packed integers and scales, and zero points if there are any; ``level``: as above.
    """
    inputs, added = [node.inputs[0], *stored], bias(node)
    if added is not None:
        inputs += [*(gs.Variable.empty() for _ in range(BIAS - len(inputs))), added]
    attrs = {**attrs, "accuracy_level": level or _QUICK[attrs["bits"]]}
    return gs.Node(OPERATOR, node.name, attrs, inputs, [], RUNTIME_DOMAIN)


def kernel_scales(
    scale: NDArray[np.float32], name: str, names: walk.Names, level: int
) -> tuple[gs.Tensor, list[gs.Node]]:
    """Return the scales of a product, and nodes to put before it.

    A kernel that rounds inputs to int8 packs constant integers with their scales when a model is opened, and
    takes scales that are not constant then, such as the output of a Cast before constant folding, for 0.
    """
    if level == ROUNDED:
        return gs.Constant(names.derive(name, "scales"), scale), []
    return stored_scales(scale, name, names)


def stored_scales(
    scale: NDArray[np.float32], name: str, names: walk.Names
) -> tuple[gs.Tensor, list[gs.Node]]:
    """Return the float32 scales of a weight, and a Cast from float16 if that type holds them exactly.

    ONNX Runtime casts them once, when it opens the model, unless constant folding is disabled.
    """
    stored_as = short(scale)
    if stored_as.dtype == np.float32:
        return gs.Constant(names.derive(name, "scales"), scale), []
    stored = gs.Constant(names.derive(name, "scales_float16"), stored_as)
    scales = gs.Variable(names.derive(name, "scales"), np.float32, list(scale.shape))
    cast = gs.Node("Cast", names.derive(name, "Cast"), {"to": dtypes.FLOAT}, [stored], [scales])
    return scales, [cast]


def short(numbers: NDArray[np.float32]) -> NDArray[np.floating]:
    """Return numbers in float16 if that holds them exactly, else as they are."""
    with np.errstate(over="ignore"):
        stored = numbers.astype(np.float16)
    return stored if np.array_equal(stored.astype(np.float32), numbers) else numbers


def _packed(weight: _Weight) -> Weight:
    """Return the integers packed to bytes, [N, B, block * bits / 8], padded with 0."""

    def _of(stored: AnyArray) -> NDArray[np.uint8]:
        integers = stored.T if weight.is_turned else stored
        shifted = (integers.astype(np.int16) - weight.lowest).astype(np.uint8)
        rows = block_rows(shifted, 1, weight.block).reshape(*weight.scale.shape, weight.block)
        return pack_numbers(rows, weight.bits)

    shape = *weight.scale.shape, weight.block * weight.bits // 8
    return derived(weight.integers, _of, np.uint8, shape)
