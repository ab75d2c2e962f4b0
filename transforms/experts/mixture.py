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
    ``of_all``, those of the softmax of all; or those of ``factors``, of the same shape, which
    ``is_normalized`` divides by their sum.
    """

    k: int
    logits: gs.Tensor
    of_all: bool = False
    factors: gs.Tensor | None = None
    is_normalized: bool = False


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


def in_turns(gate: NDArray[np.generic], value: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the rows of two arrays in turns, the first of ``gate`` first."""
    return np.stack([gate, value], axis=1).reshape(2 * len(gate), *gate.shape[1:])
