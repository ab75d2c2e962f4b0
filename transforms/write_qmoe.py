"""Mixtures of experts with stored integers, written as ONNX Runtime's QMoE.

com.microsoft's QMoE, version 1, stores the matrices of its experts as unsigned integers of 8, 4 or 2 bits,
[experts, outputs, inputs * bits / 8], the first number of a byte in its low bits, with a scale for each row
or each block of a row. Zero points are packed in the same way; without them, they are the middle,
2^(bits - 1).
The kernel of the CPU provider of ONNX Runtime 1.32 differs from the documentation of the operator:

* it has no third product: rows of the gate and the value of SwiGLU alternate in one matrix,
  ``swiglu_fusion`` 1;
* routing weights are the softmax of the selected logits, whatever ``normalize_routing_weights`` says, unless
  they are a separate input;
* inputs of products stay float32 without blocks, which is slow, and with blocks of 4 bits if
  ``accuracy_level`` is not 4; with blocks of 8 bits, and of 2 bits from 32 numbers on, they are rounded to
  int8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from transforms.features.experts.mixture import GATED, Mixture, Routing, Stack
from transforms.features.experts.runtime_moe import mixtures
from transforms.features.experts.stored_stacks import (
    INTEGERS,
    Layout,
    StoredStack,
    common_layout,
    found_stack,
    grids_of,
    rounded_stack,
    whole,
)
from transforms.graph import walk
from transforms.graph.found_grids import FoundWeight
from transforms.graph.qdq import QMOE
from transforms.graph.rewire import RUNTIME_DOMAIN, Replacements, import_domains, take_over
from transforms.graph.selection import Choice, Exclusion, NodeSet, resolve
from transforms.write_matmul_nbits import LEVELS, ROUNDED, kernel_scales, quick_level

log = logging.getLogger(__name__)

BITS = tuple(INTEGERS)
LEAST_BLOCK = 16
_LEAST_ROUNDED = 32  # numbers of a block of 2 bits whose kernel rounds inputs
_ZERO_POINTS = 11  # the input of the first ones


def write_qmoe(
    graph: gs.Graph,
    bits: int = 4,
    block_size: int = 16,
    *,
    accuracy_level: int | None = None,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
) -> int:
    """Put QMoE in the place of each MoE of ONNX Runtime with constant weights in float32; return how many.

    Also in bodies.

    Blocks have ``block_size`` numbers, or the largest smaller power of two down to 16 that divides the number
    of inputs; otherwise each row is a block. Errors of two or three consecutive products add up: blocks of 16
    gain 1.5 dB over blocks of 32. Zero points are used where they lower the error of the weights.
    ``accuracy_level``: as of :func:`transforms.write_matmul_nbits.write_matmul_nbits`.

    Does nothing where the CPU provider lacks a kernel: for activations other than relu, gelu, silu, identity
    and SwiGLU, and for weights of 2 or 4 bits whose rows do not fill bytes.

    Raises ValueError for other ``bits`` than 8, 4 and 2, another block size or level.
    """
    if bits not in BITS:
        raise ValueError(f"experts cannot have {bits} bits, legal are {', '.join(map(str, BITS))}")
    if block_size < LEAST_BLOCK or block_size & (block_size - 1):
        raise ValueError(f"block_size is {block_size}, legal are powers of two from {LEAST_BLOCK} on")
    if accuracy_level not in (None, *LEVELS):
        raise ValueError(f"accuracy_level is {accuracy_level}, legal are {', '.join(map(str, LEVELS))}")

    def _rounded(name: str, mixture: Mixture) -> _Stored | None:
        if not _fits(name, mixture, bits):
            return None
        layout = Layout(bits, _block(mixture, block_size))
        stacks = [rounded_stack(stack, layout) for stack in _stacks(mixture)]
        return _Stored(mixture, layout, stacks, accuracy_level or quick_level(bits))

    return _write(graph, _rounded, resolve(exclude, graph, nodes))


def write_found_experts(graph: gs.Graph, level: int | None, kept: NodeSet, found: list[FoundWeight]) -> int:
    """Replace each mixture whose experts lie on grids that QMoE supports by QMoE; return how many.

    The values of weights do not change. ``found`` receives stacks with their grids.
    """

    def _on_grids(name: str, mixture: Mixture) -> _Stored | None:
        stacks = _stacks(mixture)
        grids = [stack_grids for stack in stacks if (stack_grids := grids_of(stack)) is not None]
        if len(grids) < len(stacks):
            return None
        layout = common_layout([grid for stack_grids in grids for grid in stack_grids])
        if not _fits(name, mixture, layout.bits) or any(
            stack.shape[2] % (layout.block or 1) for stack in stacks
        ):
            return None
        for stack, stack_grids in zip(stacks, grids, strict=True):
            found.append(FoundWeight(stack.name, int(np.prod(stack.shape)), whole(stack_grids, layout)))
        pairs = zip(stacks, grids, strict=True)
        stored = [found_stack(stack, stack_grids, layout) for stack, stack_grids in pairs]
        return _Stored(mixture, layout, stored, level or _exact_level(layout))

    return _write(graph, _on_grids, kept)


@dataclass(frozen=True)
class _Stored:
    """A mixture, the layout of its two stacks, the stacks, and the accuracy level of their products."""

    mixture: Mixture
    layout: Layout
    stacks: Sequence[StoredStack]
    level: int


def _write(graph: gs.Graph, store: Callable[[str, Mixture], _Stored | None], excluded: NodeSet) -> int:
    """Replace each MoE that ``store`` can store by QMoE; return how many."""
    names, changed = walk.Names(graph), 0
    for owner in walk.graphs(graph):
        replacements = Replacements(owner)
        for node, mixture in mixtures(owner):
            stored = None if node in excluded else store(str(node.name), mixture)
            if stored is None:
                continue
            before, qmoe = _nodes(str(node.name), stored, names)
            take_over(qmoe, node.outputs[0])
            replacements.replace([node], [*before, qmoe])
            changed += 1
        replacements.place()
    if changed:
        import_domains(graph, {RUNTIME_DOMAIN})
    return changed


def _exact_level(layout: Layout) -> int:
    """Return the level whose kernels keep inputs float32, or, if none does, the level that rounds them.

    With another level they would be rounded only in optimized sessions.
    """
    rounds = (layout.bits == 8 and layout.block > 0) or (layout.bits == 2 and layout.block >= _LEAST_ROUNDED)
    return ROUNDED if rounds else 1


def _stacks(mixture: Mixture) -> tuple[Stack, Stack]:
    return mixture.first, mixture.second


def _fits(name: str, mixture: Mixture, bits: int) -> bool:
    """Return whether the rows of both products fill bytes."""
    if any(stack.shape[2] * bits % 8 for stack in _stacks(mixture)):
        log.debug("experts of '%s' stay: rows of their weights do not fill bytes in %d bits", name, bits)
        return False
    return True


def _block(mixture: Mixture, most: int) -> int:
    """Return the largest block size up to ``most`` that divides the inputs of both products, 0 for rows."""
    sizes = (1 << exponent for exponent in reversed(range(most.bit_length())))
    inputs = mixture.first.shape[2], mixture.second.shape[2]
    return next((size for size in sizes if size >= LEAST_BLOCK and not any(n % size for n in inputs)), 0)


def _nodes(name: str, stored: _Stored, names: walk.Names) -> tuple[list[gs.Node], gs.Node]:
    """Return the nodes to put before a QMoE of a name, and the QMoE, without an output."""
    mixture, layout, level = stored.mixture, stored.layout, stored.level
    routing = mixture.routing
    factors, before = _factors(routing, names)
    inputs, zero_points = [mixture.data, routing.logits], list[gs.Tensor]()
    for stack, rounded in zip(_stacks(mixture), stored.stacks, strict=True):
        scales, casts = kernel_scales(rounded.scales, stack.name, names, level)
        inputs += [gs.Constant(names.derive(stack.name, "packed"), rounded.packed), scales]
        inputs.append(_optional(stack.bias, stack.name, "bias", names))
        zero_points.append(_optional(rounded.zero_points, stack.name, "zero_points", names))
        before += casts
    inputs += [gs.Variable.empty() for _ in range(_ZERO_POINTS - len(inputs))]
    inputs += [*zero_points, gs.Variable.empty(), *([] if factors is None else [factors])]
    while inputs[-1].is_empty():
        inputs.pop()
    attrs: dict[str, object] = {
        "k": routing.k,
        "activation_type": mixture.activation,
        "normalize_routing_weights": int(factors is None),
        "expert_weight_bits": layout.bits,
        "accuracy_level": level,
        **mixture.constants,
    }
    attrs |= {"block_size": layout.block} if layout.block else {}
    attrs |= {"swiglu_fusion": 1} if mixture.activation == GATED else {}
    return before, gs.Node(QMOE, name, attrs, inputs, [], RUNTIME_DOMAIN)


def _optional(values: AnyArray | None, name: str, suffix: str, names: walk.Names) -> gs.Tensor:
    return gs.Variable.empty() if values is None else gs.Constant(names.derive(name, suffix), values)


def _factors(routing: Routing, names: walk.Names) -> tuple[gs.Tensor | None, list[gs.Node]]:
    """Return the routing weights of experts, and the nodes that compute them."""
    if not routing.of_all:
        return None, []
    logits = routing.logits
    factors = gs.Variable(names.derive(logits.name, "probabilities"), np.float32, logits.shape)
    softmax = gs.Node("Softmax", names.derive(logits.name, "Softmax"), {"axis": -1}, [logits], [factors])
    return factors, [softmax]
