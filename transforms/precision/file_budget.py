"""Convert the budget of a rule, of bits per weight or bytes of a file, to bits of all weights."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from transforms.precision.assign import Choices, Option, Size, by_error_per_cost, least_bits
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.target import TargetError

_ROUNDING = 1e-12


def bits_of_budget(
    rule: MixingRule,
    options: Sequence[Option],
    baseline: Mapping[str, Size],
    weights: int,
    bytes_written: Callable[[Choices], int],
) -> float | None:
    """Return the bits that all weights together may take; None without a budget.

    ``weights``: their number. Raises TargetError, in the unit of the rule, for a budget that is too small.
    """
    if rule.size_target is not None:
        return bits_of_file(options, baseline, bytes_written, rule.size_target)
    if rule.bits_target is None:
        return None
    least = least_bits(options, baseline) / max(weights, 1)
    if rule.bits_target * (1 + _ROUNDING) < least:
        words = f"bits_target {rule.bits_target:.10g} cannot be met: the smallest formats take {least:.10g}"
        raise TargetError(words)
    return rule.bits_target * weights


def bits_of_file(
    options: Sequence[Option],
    baseline: Mapping[str, Size],
    bytes_written: Callable[[Choices], int],
    most: int,
) -> float:
    """Return the bits of all weights in the largest file of at most ``most`` bytes.

    The files are those on the way of :func:`transforms.precision.assign.assign` from the ``baseline`` to the
    ``options`` of fewer bits; a binary search calls ``bytes_written`` for some of them. Raises TargetError,
    with the size of the smallest file, if that is larger.
    """
    bits = {(option.layer, option.label): option.size.weight for option in options}
    baseline_bits = {layer: size.weight for layer, size in baseline.items()}

    def _cost(layer: str, label: str | None) -> float:
        return baseline_bits[layer] if label is None else bits[layer, label]

    order = by_error_per_cost(options, _cost)

    @cache
    def _bytes(count: int) -> int:
        return bytes_written({option.layer: option.label for option in order[:count]})

    if _bytes(len(order)) > most:
        raise TargetError(
            f"size_target {most:,} bytes cannot be met: the smallest file takes {_bytes(len(order)):,}"
        )
    count = bisect_left(range(len(order)), True, key=lambda moved: _bytes(moved) <= most)
    chosen = baseline_bits | {option.layer: bits[option.layer, option.label] for option in order[:count]}
    return math.fsum(chosen.values())
