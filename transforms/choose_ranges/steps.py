"""Which settings are tried, one key of the scheme after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transforms.choose_ranges.setting import EXTRAPOLATED, Setting, WeightKind
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO
from transforms.scheme.scheme_values import has_room

_COUNTED = ("MinMax", "MSE")
_WIDE = "Wide"


@dataclass(frozen=True)
class Known:
    """The gain in dB that a change has on other models, on samples unseen there, and how much that differs.

    Measured over 30 networks made for it and 38 trained ones, with ranges from eight samples.
    ``shows``: whether samples of a model that show a loss decide against it.
    """

    expected: float
    spread: float
    shows: bool = True


_CORRECTED = Known(0.3, 0.5, shows=False)
_PER_CHANNEL = Known(0.5, 0.8, shows=False)
_BOTH = Known(0.8, 0.9, shows=False)
_METHOD = {"MinMax": Known(0.1, 0.4, shows=False), "MSE": Known(0.0, 0.5)}
"""MinMax loses less where samples exceed what was seen: it is 0.2 dB better on 64 networks made with samples
of unlike contrast, of which held-out samples told nothing, and 1 dB worse on 27 trained ones."""
_NARROW = Known(-2.0, 3.0)  # of ranges that reach beyond: numbers that samples do not show are cut off
_ROOM = Known(0.3, 1.0, shows=False)  # nothing mostly, and much if an unseen sample is cut off


def _reach(samples: int) -> Known:
    """Return what ranges beyond the samples bring, which is less the more samples there are.

    Trained networks that all took them gained 3 dB in the mean with 8 samples (67), and 0.4 with 32 (54).
    """
    return Known(16 / samples, 3 * (8 / samples) ** 0.5)


@dataclass(frozen=True)
class Step:
    """Settings to go to from the best so far, and what each brings other models."""

    settings: Callable[[Setting], Sequence[tuple[Setting, Known]]]


def methods_for(scheme: Scheme, *, counted: bool) -> tuple[str, ...]:
    """Return the methods of finding ranges that are compared; ``counted``: whether there are histograms."""
    found = _COUNTED if counted else ()
    return (*(found or ("MinMax",)), EXTRAPOLATED) if has_room(scheme.format(scheme.activation)) else found


def steps(
    scheme: Scheme,
    ends: Sequence[Sequence[str]],
    methods: Sequence[str] = _COUNTED,
    *,
    beyond: Sequence[str] = (),
    samples: int = 8,
    together: bool = False,
) -> Iterator[Step]:
    """Yield the steps for what a scheme leaves open.

    ``ends``: groups of tensors at the ends of the model, which may get room. ``methods``: of finding ranges,
    for which there are statistics. ``beyond``: groups whose ranges may reach beyond the ``samples``.
    ``together``: scales per channel and corrected biases are one step.
    """
    ranges = scheme.calibrate_method == AUTO and not scheme.moving_average
    far = ranges and EXTRAPOLATED in methods
    near = [method for method in methods if method != EXTRAPOLATED]
    found = Step(lambda best: [(best.with_(method=one), _NARROW if far else _METHOD[one]) for one in near])
    if far:
        yield found  # what is cut off hides what weights do
    kind = WeightKind(True, scheme.weight_method)
    if together and scheme.per_channel == AUTO == scheme.correct_biases:
        yield Step(lambda best: [(best.with_(kind=kind, corrected=True), _BOTH)])
    else:
        if scheme.per_channel == AUTO:
            yield Step(lambda best: [(best.with_(kind=kind), _PER_CHANNEL)])
        if scheme.correct_biases == AUTO:
            yield Step(lambda best: [(best.with_(corrected=True), _CORRECTED)])
    if ranges and not far:
        roomy = [(dict.fromkeys(groups, _WIDE), _ROOM) for groups in ends]
        roomy += [(dict.fromkeys(beyond, EXTRAPOLATED), _reach(samples))] if beyond else []
        if roomy:
            yield Step(lambda best: [(best.with_(methods=one), known) for one, known in roomy])
        if methods:
            yield found


def settings_of(start: Setting, found: Sequence[Step]) -> int:
    """Return how many settings are measured at most: the start, and those that steps lead to from it."""
    return 1 + sum(setting != start for step in found for setting, _ in step.settings(start))
