"""Weights rounded by the outputs of layers: those of few bits, or of 8 beside wider activations.

Beside 8-bit activations, whose steps are as coarse, weights are restricted to sums that do not saturate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.formats import Format

if TYPE_CHECKING:
    from transforms.scheme.scheme import Scheme

FEW_BITS = 7
"""Bits of an element, including its share of exponents, below which outputs of layers round weights best."""

_BITS = 8


def has_few_bits(fmt: Format | None) -> bool:
    """Return whether a format has few bits; None is float."""
    return fmt is not None and fmt.bits < FEW_BITS


def has_8_bits(fmt: Format | None) -> bool:
    """Return whether a format is 8-bit integers; None is float."""
    return fmt is not None and fmt.is_integer and fmt.bits == _BITS


def rounds_8_bits(scheme: Scheme) -> bool:
    """Return whether weights have 8 bits, and activations of all layers more, or are float."""
    names = (scheme.activation, *(rule.activation for rule in scheme.layers.values() if rule.activation))
    formats = map(scheme.format, names)
    is_finer = all(fmt is None or fmt.bits > _BITS for fmt in formats)
    return has_8_bits(scheme.format(scheme.weight)) and is_finer and not scheme.is_dynamic
