"""A mixture of experts as stacks of matrices and a routing.

An expert is two products with an activation between them, y = W2 f(W1 x + b1) + b2; a token gets the sum of
its ``k`` experts' outputs, each weighted by the router. Stacks are [experts, outputs, inputs], as in ONNX
Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float32Array

ACTIVATIONS = ("relu", "gelu", "silu", "identity")
"""Values of ``activation_type`` for experts with one input product; with two it is SwiGLU."""

GATED = "swiglu"


@dataclass(frozen=True)
class Stack:
    """The matrices [experts, outputs, inputs] of one product, read expert by expert, and their biases.

    ``name``: that of the stored tensor; ``bias`` is [experts, outputs].
    """

    name: str
    shape: tuple[int, int, int]
    of_expert: Callable[[int], NDArray[np.generic]]
    bias: Float32Array | None = None


@dataclass(frozen=True)
class Routing:
    """How many experts a token gets, which logits choose them, and how their outputs are weighted.

    The largest of ``logits`` [tokens, experts] choose. Weights are the softmax over the chosen logits or,
    with ``of_all``, the chosen entries of the softmax over all.
    """

    k: int
    logits: gs.Tensor
    of_all: bool


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts for which ONNX Runtime's CPU provider has a kernel.

    For SwiGLU, ``first`` interleaves the outputs of gate and value; ``constants`` are the attributes
    ``activation_alpha``, ``activation_beta`` and ``swiglu_limit``.
    """

    data: gs.Tensor
    routing: Routing
    first: Stack
    second: Stack
    activation: str
    constants: Mapping[str, float] = field(default_factory=dict)


def _rows_in_turns(gate: NDArray[np.generic], value: NDArray[np.generic]) -> NDArray[np.generic]:
    """Interleave the rows of two arrays, starting with ``gate``."""
    return np.stack([gate, value], axis=1).reshape(2 * len(gate), *gate.shape[1:])


def joined(gate: Stack, value: Stack) -> Stack:
    """Return one stack for two products of the same input, with interleaved outputs."""
    experts, outputs, inputs = gate.shape

    def _of(expert: int) -> NDArray[np.generic]:
        return _rows_in_turns(gate.of_expert(expert), value.of_expert(expert))

    return Stack(gate.name, (experts, 2 * outputs, inputs), _of, _in_turns(gate.bias, value.bias, outputs))


def _in_turns(gate: Float32Array | None, value: Float32Array | None, outputs: int) -> Float32Array | None:
    """Interleave the biases of two products; an absent one is 0."""
    present = gate if gate is not None else value
    if present is None:
        return None
    parts = [np.zeros_like(present) if bias is None else bias for bias in (gate, value)]
    return np.stack(parts, axis=2).reshape(len(present), 2 * outputs)


def out_of_halves(stack: Stack) -> Stack:
    """Return a stack with interleaved outputs from one with all gate outputs before all value outputs."""
    experts, rows, inputs = stack.shape
    half, bias = rows // 2, stack.bias

    def _of(expert: int) -> NDArray[np.generic]:
        matrix = stack.of_expert(expert)
        return _rows_in_turns(matrix[:half], matrix[half:])

    turned = None if bias is None else _in_turns(bias[:, :half], bias[:, half:], half)
    return Stack(stack.name, (experts, rows, inputs), _of, turned)
