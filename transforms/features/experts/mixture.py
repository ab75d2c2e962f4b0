"""A mixture of experts as its parts: stacks of matrices, and how their results are weighed.

An expert is two products with an activation between them, y = W2 f(W1 x + b1) + b2; a token gets the sum of
those of its ``k`` experts, each times a number that its router makes. Stacks are [experts, outputs, inputs],
as ONNX Runtime has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float32Array

ACTIVATIONS = ("relu", "gelu", "silu", "identity")
"""Those of one product, as ``activation_type`` names them; of two it is SwiGLU."""

GATED = "swiglu"


@dataclass(frozen=True)
class Stack:
    """The matrices [experts, outputs, inputs] of one product, read expert by expert, and their biases.

    ``name``: that of the tensor they come from; ``bias`` is [experts, outputs].
    """

    name: str
    shape: tuple[int, int, int]
    of_expert: Callable[[int], NDArray[np.generic]]
    bias: Float32Array | None = None


@dataclass(frozen=True)
class Routing:
    """How many experts a token gets, chosen by the largest numbers of a tensor, and how they are weighed.

    ``logits`` [tokens, experts] choose. Weights are the softmax of the logits that were chosen, or,
    ``of_all``, those of the softmax of all.
    """

    k: int
    logits: gs.Tensor
    of_all: bool


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts that ONNX Runtime's CPU provider has a kernel for.

    ``first`` has the outputs of gate and value in turns if the activation is SwiGLU; ``constants`` are its
    attributes ``activation_alpha``, ``activation_beta`` and ``swiglu_limit``.
    """

    data: gs.Tensor
    routing: Routing
    first: Stack
    second: Stack
    activation: str
    constants: Mapping[str, float] = field(default_factory=dict)


def _rows_in_turns(gate: NDArray[np.generic], value: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the rows of two arrays in turns, the first of ``gate`` first."""
    return np.stack([gate, value], axis=1).reshape(2 * len(gate), *gate.shape[1:])


def joined(gate: Stack, value: Stack) -> Stack:
    """Return the stack of two products of one input, their outputs in turns."""
    experts, outputs, inputs = gate.shape

    def _of(expert: int) -> NDArray[np.generic]:
        return _rows_in_turns(gate.of_expert(expert), value.of_expert(expert))

    return Stack(gate.name, (experts, 2 * outputs, inputs), _of, _in_turns(gate.bias, value.bias, outputs))


def _in_turns(gate: Float32Array | None, value: Float32Array | None, outputs: int) -> Float32Array | None:
    """Return the biases of two products in turns; one that is absent is 0."""
    one = gate if gate is not None else value
    if one is None:
        return None
    parts = [np.zeros_like(one) if bias is None else bias for bias in (gate, value)]
    return np.stack(parts, axis=2).reshape(len(one), 2 * outputs)


def out_of_halves(stack: Stack) -> Stack:
    """Return a stack whose outputs are in turns of one that has those of the gate before the others."""
    experts, rows, inputs = stack.shape
    half, bias = rows // 2, stack.bias

    def _of(expert: int) -> NDArray[np.generic]:
        matrix = stack.of_expert(expert)
        return _rows_in_turns(matrix[:half], matrix[half:])

    turned = None if bias is None else _in_turns(bias[:, :half], bias[:, half:], half)
    return Stack(stack.name, (experts, rows, inputs), _of, turned)
