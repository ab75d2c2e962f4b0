"""Budgets of a rule as one of bits of the weights, by which formats are assigned."""

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
    """Return the bits that all weights may take, of which there are so many; None without a budget.

    Raises TargetError, in the unit of the key of the rule, for too few.
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
    """Return the bits of all weights of the largest file of at most that many bytes.

    Files are those that :func:`transforms.precision.assign.assign` passes for a budget from
    the ``baseline`` to the ``options`` of fewer bits; ``bytes_written`` is called for one in each halving of
    them. Raises ValueError, with the size of the smallest file, if that is larger.
    """
    bits = {(one.layer, one.label): one.size.weight for one in options}
    before = {layer: size.weight for layer, size in baseline.items()}

    def _cost(layer: str, label: str | None) -> float:
        return before[layer] if label is None else bits[layer, label]

    order = by_error_per_cost(options, _cost)

    @cache
    def _bytes(count: int) -> int:
        return bytes_written({one.layer: one.label for one in order[:count]})

    if _bytes(len(order)) > most:
        raise TargetError(
            f"size_target {most:,} bytes cannot be met: the smallest file takes {_bytes(len(order)):,}"
        )
    count = bisect_left(range(len(order)), True, key=lambda moved: _bytes(moved) <= most)
    chosen = before | {one.layer: bits[one.layer, one.label] for one in order[:count]}
    return math.fsum(chosen.values())
