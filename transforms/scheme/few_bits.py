"""Weights of few bits, which the outputs of their layers can round better than the weights alone."""

from __future__ import annotations

from collections.abc import Iterable

from ops.formats import Format
from transforms.scheme.scheme import AUTO, Scheme

FEW_BITS = 7
"""Bits of an element, with its share of exponents, below which outputs round weights."""


def has_few_bits(formats: Iterable[Format | None]) -> bool:
    """Return whether one of these formats of weights has few bits."""
    return any(fmt is not None and fmt.bits < FEW_BITS for fmt in formats)


def fits_weights(scheme: Scheme) -> bool:
    """Return whether the outputs of layers round weights of few bits, if there are samples."""
    asked = scheme.fit_weights is True or (scheme.fit_weights == AUTO and scheme.weight_method == AUTO)
    return asked and has_few_bits(weight_formats(scheme))


def weight_formats(scheme: Scheme) -> list[Format | None]:
    """Return the formats that a scheme may give weights."""
    rules = [rule.weight for rule in scheme.layers.values()]
    names = [scheme.weight, *(name for name in (*rules, *scheme.tensors.values()) if name)]
    return [scheme.format(name) for name in names]
