"""Products with stored integers in blocks, written as ONNX Runtime's MatMulNBits.

com.microsoft's MatMulNBits, version 1, computes A [.., K] times the transpose of B [N, K], which is stored
as unsigned integers of 4 or 8 bits, packed along K, [N, ceil(K / block), block * bits / 8], the first of two
numbers of 4 bits in the lower half of a byte. Each block has a scale [N, ceil(K / block)], and a zero point
packed likewise, which is the middle, 2^(bits - 1), if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray
from ops.integer_blocks import block_rows, scale_shape
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.dot_products import bias, is_dot_product, sum_axis
from transforms.graph.rewire import RUNTIME_DOMAIN, STANDARD_DOMAINS, Replacements, take_over
from transforms.plan.write_roundings import import_domains

OPERATOR = "MatMulNBits"
_LOWEST = {"int4": -8, "uint4": 0, "int8": -128, "uint8": 0}
_LEAST_BLOCK = 16
_BIAS = 5  # the input of that name
_FLOAT_ARITHMETIC = 1  # the value of accuracy_level with which inputs stay float32


def write_matmul_nbits(graph: gs.Graph) -> int:
    """Put MatMulNBits in the place of each MatMul and Gemm that multiplies by dequantized blocks.

    Also in bodies. Returns how many. Does nothing for a weight that is not a matrix of 4 or 8 bits on the
    right side with blocks along the sum, of a power of two from 16 on, for inputs that are vectors or of
    unknown rank, and for a Gemm with a transposed input, factors, or a bias that is not one number for each
    output.
    """
    names, changed = walk.Names(graph), 0
    for owner in walk.graphs(graph):
        found = [(node, weight) for node in owner.nodes if (weight := _weight(node)) is not None]
        replacements = Replacements(owner)
        for node, weight in found:
            new = _product(node, weight, names)
            take_over(new, node.outputs[0])
            replacements.replace([node], [new])
        replacements.place()
        changed += len(found)
    if changed:
        import_domains(graph, {RUNTIME_DOMAIN})
    return changed


@dataclass(frozen=True)
class _Weight:
    """A dequantized matrix: integers [N, K], scales and zero points [N, B], and the node that made it."""

    node: gs.Node
    integers: AnyArray
    scale: NDArray[np.float32]
    zero_point: AnyArray
    block: int

    @property
    def bits(self) -> int:
        """Bits of an integer."""
        return 4 if self.integers.dtype.name.endswith("int4") else 8

    @property
    def lowest(self) -> int:
        """The integer that is stored as 0."""
        return _LOWEST[self.integers.dtype.name]


def _weight(node: gs.Node) -> _Weight | None:
    """Return the weight of a product that MatMulNBits can compute, or None."""
    if not is_dot_product(node) or node.op not in ("MatMul", "Gemm") or not _is_plain(node):
        return None
    made = walk.producer(node.inputs[1])
    if made is None or made.op != "DequantizeLinear" or made.domain not in STANDARD_DOMAINS:
        return None
    if not all(isinstance(tensor, gs.Constant) for tensor in made.inputs):
        return None
    stored, scale, *rest = (load(tensor) for tensor in made.inputs)
    block, axis = int(made.attrs.get("block_size", 0)), int(made.attrs.get("axis", 1))
    is_power = block >= _LEAST_BLOCK and block & (block - 1) == 0
    if stored.ndim != 2 or stored.dtype.name not in _LOWEST or scale.dtype != np.float32 or not is_power:
        return None
    summed = sum_axis(node, 1, 2)
    if axis % 2 != summed or scale.shape != scale_shape(stored.shape, summed, block):
        return None
    zero = rest[0] if rest else np.zeros(scale.shape, stored.dtype)
    if not summed:
        stored, scale, zero = stored.T, scale.T, zero.T
    return _Weight(made, stored, scale, zero, block)


def _is_plain(node: gs.Node) -> bool:
    """Return whether a product is just that of its inputs, and a sum with one number for each output."""
    data, made = node.inputs[0], node.inputs[1]
    if not dtypes.is_type(data, dtypes.FLOAT) or data.shape is None or len(data.shape) < 2:
        return False
    if node.op == "MatMul":
        return True
    added, attrs = bias(node), node.attrs
    factors = ["alpha"] if added is None else ["alpha", "beta"]
    has_factors = any(float(attrs.get(name, 1)) != 1 for name in factors)
    if attrs.get("transA", 0) or has_factors or made.shape is None:
        return False
    outputs = made.shape[0 if attrs.get("transB", 0) else 1]
    return added is None or (added.shape is not None and list(added.shape) == [outputs])


def _product(node: gs.Node, weight: _Weight, names: walk.Names) -> gs.Node:
    """Return a MatMulNBits of a product's name and inputs, without an output."""
    source = weight.node.inputs[0].name
    outputs, summed = weight.integers.shape
    arrays = {"packed": _packed(weight), "scales": np.ascontiguousarray(weight.scale)}
    zeros = weight.zero_point.astype(np.int64) - weight.lowest
    if (zeros != 1 << (weight.bits - 1)).any():
        arrays["zero_points"] = _joined(zeros.astype(np.uint8), weight.bits)
    inputs = [gs.Constant(names.derive(source, suffix), array) for suffix, array in arrays.items()]
    added = bias(node)
    if added is not None:
        inputs += [*(gs.Variable.empty() for _ in range(_BIAS - 1 - len(inputs))), added]
    numbers = {"K": summed, "N": outputs, "bits": weight.bits, "block_size": weight.block}
    attrs = {**numbers, "accuracy_level": _FLOAT_ARITHMETIC}
    return gs.Node(OPERATOR, node.name, attrs, [node.inputs[0], *inputs], [], RUNTIME_DOMAIN)


def _packed(weight: _Weight) -> NDArray[np.uint8]:
    """Return the integers [N, B, block * bits / 8] as bytes; numbers beyond the last one are 0."""
    shifted = (weight.integers.astype(np.int64) - weight.lowest).astype(np.uint8)
    rows = block_rows(shifted, 1, weight.block).reshape(*weight.scale.shape, weight.block)
    return _joined(rows, weight.bits)


def _joined(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return numbers as bytes, two of 4 bits in one, the first in the lower half."""
    if bits == 8:
        return np.ascontiguousarray(numbers)
    even = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, numbers.shape[-1] % 2)])
    return np.bitwise_or(even[..., 0::2], even[..., 1::2] * np.uint8(16), dtype=np.uint8)
