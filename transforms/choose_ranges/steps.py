"""Which settings are tried, one key of the scheme after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transforms.choose_ranges.setting import Setting, WeightKind
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO

_METHODS = ("MinMax", "MSE")
_SPREAD = 1.5  # dB: by how much the gain of a step differs between models
_OF_CORRECTION = 1.0  # dB that corrected biases bring on average
_OF_ROOM = 0.5  # dB that room in the ranges of outputs brings: nothing mostly, and much if one is cut off
_OTHERS = 6  # settings that are tried beside kinds of weights


@dataclass(frozen=True)
class Step:
    """Settings to go to from the best so far.

    ``expected``, ``spread``: the gain in dB that such a step has on other models, and how much that differs.
    """

    settings: Callable[[Setting], Sequence[Setting]]
    expected: float = 0.0
    spread: float = _SPREAD


def steps(scheme: Scheme, ends: Sequence[Sequence[str]], affordable: int) -> Iterator[Step]:
    """Yield the steps for what a scheme leaves open.

    ``ends``: groups of tensors at the ends of the model, which may get room. ``affordable``: how many
    settings may be tried; the least useful kinds of weights are left out first.
    """
    if scheme.correct_biases == AUTO:
        yield Step(lambda best: [best.with_(corrected=True)], _OF_CORRECTION)
    kinds = open_kinds(scheme)[: max(1, affordable - _OTHERS)]
    if kinds:
        yield Step(lambda best: [best.with_(kind=kind) for kind in kinds])
    if scheme.calibrate_method == AUTO and not scheme.moving_average:
        yield Step(lambda best: [best.with_(method=method) for method in _METHODS])
        if ends:
            roomy = [dict.fromkeys(groups, "Wide") for groups in ends]
            yield Step(lambda best: [best.with_(methods=one) for one in roomy], _OF_ROOM, 2 * _SPREAD)


def open_kinds(scheme: Scheme) -> list[WeightKind]:
    """Return the kinds of weights that a scheme leaves open, the most useful first."""
    if scheme.per_channel != AUTO:
        return []
    methods = ("MSE", "MinMax", "WeightedMSE") if scheme.weight_method == AUTO else (scheme.weight_method,)
    first, *others = (WeightKind(True, method) for method in methods)
    return [first, WeightKind(False, scheme.weight_method), *others]


def measured_kinds(scheme: Scheme) -> list[WeightKind]:
    """Return kinds whose plans together need all statistics that any setting does."""
    if scheme.per_channel != AUTO:
        return [WeightKind(scheme.per_channel, scheme.weight_method)]
    weighted = "WeightedMSE" if scheme.weight_method == AUTO else scheme.weight_method
    return [WeightKind(True, weighted), WeightKind(False, scheme.weight_method)]
