"""What a mixture of experts makes of tokens, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ops.array_types import Float64Array
from transforms.experts.mixture import GATED, Mixture, Routing, Stack


def mixture_outputs(mixture: Mixture, data: Float64Array, logits: Float64Array) -> Float64Array:
    """Return what a mixture makes of tokens [T, width] with logits [T, experts], also of factors."""
    made = np.zeros((len(data), mixture.second.shape[1]))
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, : mixture.routing.k]
    for token, experts in enumerate(chosen):
        factors = _factors(mixture.routing, logits[token], experts)
        for factor, expert in zip(factors, experts, strict=True):
            inner = _product(mixture.first, int(expert), data[token])
            inner = _activated(inner, mixture.activation, mixture.constants)
            made[token] += factor * _product(mixture.second, int(expert), inner)
    return made


def _product(stack: Stack, expert: int, numbers: Float64Array) -> Float64Array:
    made = np.asarray(stack.of_expert(expert), np.float64) @ numbers
    return made if stack.bias is None else made + stack.bias[expert]


def _factors(routing: Routing, logits: Float64Array, experts: Float64Array) -> Float64Array:
    if routing.factors is None:
        numbers = np.exp(logits - logits.max())
        return np.asarray(numbers[experts] / (numbers if routing.of_all else numbers[experts]).sum())
    return logits[experts] / (logits[experts].sum() if routing.is_normalized else 1.0)


def _activated(numbers: Float64Array, activation: str, constants: Mapping[str, float]) -> Float64Array:
    if activation == GATED:
        gate, value = numbers[::2], numbers[1::2]
        alpha, beta = constants.get("activation_alpha", 1.0), constants.get("activation_beta", 0.0)
        return gate * _sigmoid(alpha * gate) * (value + beta)
    if activation == "relu":
        return np.maximum(numbers, 0)
    if activation == "gelu":
        return 0.5 * numbers * (1 + np.tanh(np.sqrt(2 / np.pi) * (numbers + 0.044715 * numbers**3)))
    return numbers * _sigmoid(numbers) if activation == "silu" else numbers


def _sigmoid(numbers: Float64Array) -> Float64Array:
    return 0.5 * (1 + np.tanh(numbers / 2))
