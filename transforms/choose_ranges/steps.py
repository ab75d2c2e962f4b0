"""Which settings are tried, one key of the scheme after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transforms.choose_ranges.setting import Setting, WeightKind
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO

_METHODS = ("MinMax", "MSE")
_OTHERS = 6  # settings that are tried beside kinds of weights


@dataclass(frozen=True)
class Known:
    """The gain in dB that a change has on other models, on samples unseen there, and how much that differs.

    Measured over 30 networks made for it and eleven trained ones, with ranges from eight samples.
    """

    expected: float
    spread: float


_CORRECTED = Known(0.3, 0.5)
_PER_CHANNEL = Known(0.25, 0.4)
_PER_TENSOR = Known(-2.0, 2.5)
_METHOD = Known(0.0, 0.5)
_ROOM = Known(0.6, 1.4)  # nothing mostly, and much if an unseen sample is cut off


@dataclass(frozen=True)
class Step:
    """Settings to go to from the best so far, and what each brings other models."""

    settings: Callable[[Setting], Sequence[tuple[Setting, Known]]]


def steps(scheme: Scheme, ends: Sequence[Sequence[str]], affordable: int) -> Iterator[Step]:
    """Yield the steps for what a scheme leaves open.

    ``ends``: groups of tensors at the ends of the model, which may get room. ``affordable``: how many
    settings may be tried; the least useful kinds of weights are left out first.
    """
    kinds = open_kinds(scheme)[: max(1, affordable - _OTHERS)]
    if kinds:
        yield Step(lambda best: [(best.with_(kind=kind), _of(kind)) for kind in kinds])
    if scheme.correct_biases == AUTO:
        yield Step(lambda best: [(best.with_(corrected=True), _CORRECTED)])
    if scheme.calibrate_method == AUTO and not scheme.moving_average:
        if ends:
            roomy = [dict.fromkeys(groups, "Wide") for groups in ends]
            yield Step(lambda best: [(best.with_(methods=one), _ROOM) for one in roomy])
        yield Step(lambda best: [(best.with_(method=method), _METHOD) for method in _METHODS])


def _of(kind: WeightKind) -> Known:
    return _PER_CHANNEL if kind.per_channel else _PER_TENSOR


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
