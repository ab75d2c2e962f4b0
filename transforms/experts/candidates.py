"""Enumerate the expert layouts that fit a set of weight stacks and have kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Float32Array
from transforms.experts.mixture import ACTIVATIONS, GATED, Mixture, Routing, Stack, joined, out_of_halves

_CONSTANTS = ((1.0, 0.0), (1.702, 1.0))  # alpha and beta of SwiGLU


@dataclass(frozen=True)
class Stacked:
    """A matrix for each expert, either side its outputs, and a bias; ``is_last``: of the second product."""

    name: str
    values: AnyArray
    bias: Float32Array | None
    is_last: bool


def candidates(data: gs.Tensor, logits: gs.Tensor, k: int, stacks: Sequence[Stacked]) -> Iterator[Mixture]:
    """Yield mixtures of some stacks, in all ways in which their sizes fit."""
    width = int(data.shape[1])
    lasts = [one for one in stacks if one.is_last]
    firsts = [one for one in stacks if not one.is_last]
    if len(lasts) != 1 or len(firsts) not in (1, 2):
        return
    routings = (
        Routing(k, logits),
        Routing(k, logits, factors=logits),
        Routing(k, logits, factors=logits, is_normalized=True),
    )
    for second in _turned(lasts[0], outputs=width):
        for first, activation, constants in _firsts(firsts, width, second.shape[2]):
            for routing in routings:
                yield Mixture(data, routing, first, second, activation, constants)


def _firsts(
    firsts: Sequence[Stacked], width: int, inner: int
) -> Iterator[tuple[Stack, str, dict[str, float]]]:
    """Yield the first product, joined if there are two, with each activation that it may have."""
    gated: list[Stack] = []
    for one, *others in permutations(firsts):
        for stack in _turned(one, inputs=width):
            if others:
                gated += [joined(stack, other) for other in _turned(others[0], inputs=width)]
            elif stack.shape[1] == inner:
                yield from ((stack, activation, {}) for activation in ACTIVATIONS)
            elif stack.shape[1] == 2 * inner:
                gated += [stack, out_of_halves(stack), _swapped(stack), _swapped(out_of_halves(stack))]
    for stack in gated:
        if stack.shape[1] == 2 * inner:
            for alpha, beta in _CONSTANTS:
                yield stack, GATED, {"activation_alpha": alpha, "activation_beta": beta}


def _turned(one: Stacked, outputs: int = 0, inputs: int = 0) -> Iterator[Stack]:
    """Yield a stack as [experts, outputs, inputs], in one or both ways that fit."""
    values = one.values
    for turn in (False, True):
        count, rows, columns = map(int, values.shape)
        shape = (count, columns, rows) if turn else (count, rows, columns)
        fits = one.bias is None or one.bias.shape == shape[:2]
        if fits and outputs in (0, shape[1]) and inputs in (0, shape[2]):
            yield Stack(one.name, shape, partial(_matrix, values, turn), one.bias)


def _matrix(values: AnyArray, turn: bool, expert: int) -> AnyArray:
    return values[expert].T if turn else values[expert]


def _swapped(stack: Stack) -> Stack:
    """Return a stack with gate and value in the other order of their turns."""
    order = np.arange(stack.shape[1]).reshape(-1, 2)[:, ::-1].reshape(-1)
    bias = None if stack.bias is None else stack.bias[:, order]
    return Stack(stack.name, stack.shape, lambda expert: stack.of_expert(expert)[order], bias)
