"""Mixtures of experts with stored integers, written as ONNX Runtime's QMoE.

com.microsoft's QMoE, version 1, has the matrices of its experts as unsigned integers of 8, 4 or 2 bits,
[experts, outputs, inputs * bits / 8], the first of the numbers of a byte in its low bits, with a scale for
each row or each block of one, and zero points packed likewise, which are the middle, 2^(bits - 1), if there
are none.
What its kernel of the CPU provider computes, of ONNX Runtime 1.32, is not all that its documentation says:

* no third product: gate and value of SwiGLU have the rows of one matrix in turns, ``swiglu_fusion`` 1;
* weights of experts are the softmax of those logits that were chosen, whatever ``normalize_routing_weights``
  says, unless the weights are an input of their own;
* inputs of products stay float32 without blocks, which is slow, and with blocks of 4 bits where
  ``accuracy_level`` is not 4; with those of 8 bits, and of 2 from 32 numbers on, they are rounded to int8.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops import FORMATS
from ops.array_types import AnyArray, Float32Array
from ops.formats import Format
from ops.integer_blocks import block_parameters, dequantize_blocks, pack_numbers, quantize_blocks
from transforms.experts.find_mixtures import Found, mixtures
from transforms.experts.finer_units import split
from transforms.experts.mixture import GATED, Mixture, Routing, Stack
from transforms.graph import walk
from transforms.graph.rewire import RUNTIME_DOMAIN, Replacements, import_domains, take_over
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.write_matmul_nbits import LEVELS, kernel_scales, quick_level

log = logging.getLogger(__name__)

OPERATOR = "QMoE"
_GRIDS = {bits: (FORMATS[f"int{bits}"], FORMATS[f"uint{bits}"]) for bits in (8, 4, 2)}
"""By bits: integers without zero points, and with them."""

BITS = tuple(_GRIDS)
_FINER = 8
"""Bits of inner numbers that get more than others."""
LEAST_BLOCK = 16
_ZERO_POINTS = 11  # the input of the first ones


def write_qmoe(
    graph: gs.Graph,
    bits: int = 4,
    block_size: int = 16,
    *,
    accuracy_level: int | None = None,
    finer_share: float = 0.0,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
) -> int:
    """Put QMoE in the place of each mixture of experts in float32; return how many.

    Also in bodies. A mixture is a MoE of ONNX Runtime with constant weights, or a TopK and Gathers of
    matrices by what it chose, with all that follows, if a mixture computes the same of random tokens.

    Blocks have ``block_size`` numbers, or half of that and so on down to 16 where inputs are not made of
    whole ones, else a row is one. Errors of two or three products in a row add up: blocks of 16 have 1.5 dB
    more than those of 32. There are zero points where weights have less error with them.
    ``accuracy_level``: as of :func:`transforms.write_matmul_nbits.write_matmul_nbits`. ``finer_share``: the
    inner numbers of experts that count most have 8 bits, in a second QMoE that is added, while the integers
    grow by this share: rounded up to whole blocks, at most a quarter of the numbers.

    Does nothing for what the CPU provider has no kernel for: another activation than relu, gelu, silu,
    identity and SwiGLU; weights of 2 or 4 bits whose rows do not fill bytes.

    Raises ValueError for other ``bits`` than 8, 4 and 2, another block size or level.
    """
    if bits not in _GRIDS:
        raise ValueError(f"experts cannot have {bits} bits, legal are {', '.join(map(str, _GRIDS))}")
    if block_size < LEAST_BLOCK or block_size & (block_size - 1):
        raise ValueError(f"block_size is {block_size}, legal are powers of two from {LEAST_BLOCK} on")
    if accuracy_level not in (None, *LEVELS):
        raise ValueError(f"accuracy_level is {accuracy_level}, legal are {', '.join(map(str, LEVELS))}")
    kept, names, changed = resolve(exclude, graph, nodes), walk.Names(graph), 0
    for owner in walk.graphs(graph):
        replacements = Replacements(owner)
        for found in mixtures(owner):
            if found.last in kept or not _fits(found, bits):
                continue
            grid = _Grid(bits, _block(found.mixture, block_size), accuracy_level)
            made, new = _written(found, grid, finer_share, names)
            take_over(new, found.output)
            replacements.replace([found.last], [*made, new])  # those before it go with it
            changed += 1
        replacements.place()
    if changed:
        import_domains(graph, {RUNTIME_DOMAIN})
    return changed


@dataclass(frozen=True)
class _Grid:
    """Bits of an integer, numbers of a block, 0 for a whole row, and the accuracy_level that is asked for."""

    bits: int
    block: int
    asked: int | None

    @property
    def level(self) -> int:
        """How exactly products are computed."""
        return self.asked or quick_level(self.bits)


def _fits(found: Found, bits: int) -> bool:
    """Return whether the rows of both products fill bytes."""
    stacks = found.mixture.first, found.mixture.second
    if any(one.shape[2] * bits % 8 for one in stacks):
        log.debug(
            "experts of '%s' stay: rows of their weights do not fill bytes in %d bits", found.name, bits
        )
        return False
    return True


def _block(mixture: Mixture, most: int) -> int:
    """Return the size of blocks that the inputs of both products are made of, 0 if a row is one."""
    sizes = (1 << exponent for exponent in reversed(range(most.bit_length())))
    inputs = mixture.first.shape[2], mixture.second.shape[2]
    return next((size for size in sizes if size >= LEAST_BLOCK and not any(n % size for n in inputs)), 0)


def _written(
    found: Found, grid: _Grid, finer_share: float, names: walk.Names
) -> tuple[list[gs.Node], gs.Node]:
    """Return the node that takes the place of a mixture, without an output, and nodes to put before it."""
    mixture = found.mixture
    factors, before = _factors(mixture.routing, names)
    growth = _FINER / grid.bits - 1
    parts = split(mixture, finer_share / growth, grid.block) if grid.block and growth else None
    if parts is None:
        made, node = _quantized(found.name, mixture, factors, grid, names)
        return [*before, *made], node
    summed: list[gs.Tensor] = []
    for part, own in zip(parts, (grid, replace(grid, bits=_FINER)), strict=True):
        name = found.name if own is grid else names.derive(found.name, "finer")
        made, node = _quantized(name, part, factors, own, names)
        output = found.output
        node.outputs = [gs.Variable(names.derive(output.name, "part"), np.float32, output.shape)]
        summed += node.outputs
        before += [*made, node]
    return before, gs.Node("Add", names.derive(found.name, "Add"), {}, summed, [])


def _quantized(
    name: str, mixture: Mixture, factors: gs.Tensor | None, grid: _Grid, names: walk.Names
) -> tuple[list[gs.Node], gs.Node]:
    """Return a QMoE of a name, without an output, and nodes to put before it."""
    routing = mixture.routing
    inputs, zero_points, before = [mixture.data, routing.logits], list[gs.Tensor](), list[gs.Node]()
    for stack in (mixture.first, mixture.second):
        data, scale, zero_point = _stored(stack, grid)
        scales, casts = kernel_scales(scale, stack.name, names, grid.level)
        inputs += [gs.Constant(names.derive(stack.name, "packed"), data), scales]
        inputs.append(_optional(stack.bias, stack.name, "bias", names))
        zero_points.append(_optional(zero_point, stack.name, "zero_points", names))
        before += casts
    inputs += [gs.Variable.empty() for _ in range(_ZERO_POINTS - len(inputs))]
    inputs += [*zero_points, gs.Variable.empty(), *([] if factors is None else [factors])]
    while inputs[-1].is_empty():
        inputs.pop()
    attrs: dict[str, object] = {
        "k": routing.k,
        "activation_type": mixture.activation,
        "normalize_routing_weights": int(routing.is_normalized or factors is None),
        "expert_weight_bits": grid.bits,
        "accuracy_level": grid.level,
        **mixture.constants,
    }
    attrs |= {"block_size": grid.block} if grid.block else {}
    attrs |= {"swiglu_fusion": 1} if mixture.activation == GATED else {}
    return before, gs.Node(OPERATOR, name, attrs, inputs, [], RUNTIME_DOMAIN)


def _optional(values: AnyArray | None, name: str, suffix: str, names: walk.Names) -> gs.Tensor:
    return gs.Variable.empty() if values is None else gs.Constant(names.derive(name, suffix), values)


def _factors(routing: Routing, names: walk.Names) -> tuple[gs.Tensor | None, list[gs.Node]]:
    """Return the numbers that weigh experts, and the nodes that make them."""
    if not routing.of_all:
        return routing.factors, []
    logits = routing.logits
    factors = gs.Variable(names.derive(logits.name, "probabilities"), np.float32, logits.shape)
    softmax = gs.Node("Softmax", names.derive(logits.name, "Softmax"), {"axis": -1}, [logits], [factors])
    return factors, [softmax]


def _stored(stack: Stack, grid: _Grid) -> tuple[AnyArray, Float32Array, AnyArray | None]:
    """Return packed integers, scales and zero points of a stack, in the way of least squared error."""
    tries = [_Stored.of(stack, fmt, grid.block) for fmt in _GRIDS[grid.bits]]
    best = min(tries, key=lambda one: one.error)
    shape = (stack.shape[0], -1, stack.shape[2] // grid.block) if grid.block else (stack.shape[0], -1)
    zero_points = None
    if best.zero_points is not None:
        zero_points = pack_numbers(best.zero_points.reshape(shape), grid.bits)
    return best.packed, best.scales.reshape(shape), zero_points


@dataclass(frozen=True)
class _Stored:
    """A stack in a format: packed integers, scales, zero points unless all are the middle, squared error."""

    packed: NDArray[np.uint8]
    scales: Float32Array
    zero_points: NDArray[np.uint8] | None
    error: float

    @staticmethod
    def of(stack: Stack, fmt: Format, block: int) -> _Stored:
        """Quantize a stack, one expert at a time."""
        packed, scales, zeros, error = [], [], [], 0.0
        for expert in range(stack.shape[0]):
            matrix = np.asarray(stack.of_expert(expert), np.float32)
            size = block or stack.shape[2]
            parameters = block_parameters(matrix, fmt, 1, size, symmetric=fmt.is_signed, method="MSE")
            integers = quantize_blocks(matrix, parameters, fmt, 1, size)
            decoded = dequantize_blocks(integers, parameters, 1, size)
            error += float(np.square(matrix - decoded, dtype=np.float64).sum())
            packed.append(pack_numbers(_from_lowest(integers, fmt), int(fmt.bits)))
            scales.append(parameters[0])
            zeros.append(_from_lowest(parameters[1], fmt))
        zero_points = None if fmt.is_signed else np.stack(zeros)
        return _Stored(np.stack(packed), np.stack(scales), zero_points, error)


def _from_lowest(integers: NDArray[Any], fmt: Format) -> NDArray[np.uint8]:
    """Return the numbers that are stored for integers: the lowest one is 0."""
    return (integers.astype(np.int16) - int(fmt.lowest)).astype(np.uint8)
