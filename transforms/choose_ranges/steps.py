"""Which settings are tried, one key of the scheme after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transforms.choose_ranges.setting import Setting, WeightKind
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO

METHODS = ("MinMax", "MSE")


@dataclass(frozen=True)
class Known:
    """The gain in dB that a change has on other models, on samples unseen there, and how much that differs.

    Measured over 30 networks made for it and eleven trained ones, with ranges from eight samples.
    ``shows``: whether samples of a model that show a loss decide against it.
    """

    expected: float
    spread: float
    shows: bool = True


_CORRECTED = Known(0.3, 0.5)
_PER_CHANNEL = Known(0.25, 0.4)
_BOTH = Known(0.55, 0.6)
_METHOD = {"MinMax": Known(0.2, 0.4, shows=False), "MSE": Known(0.0, 0.5)}
"""On 64 networks with samples of unlike contrast, eight samples that were held out tell nothing of which of
them is better on others (correlation 0.07), and MinMax loses less if those exceed what was seen."""
_ROOM = Known(0.3, 1.0, shows=False)  # nothing mostly, and much if an unseen sample is cut off


@dataclass(frozen=True)
class Step:
    """Settings to go to from the best so far, and what each brings other models."""

    settings: Callable[[Setting], Sequence[tuple[Setting, Known]]]


def steps(
    scheme: Scheme,
    ends: Sequence[Sequence[str]],
    methods: Sequence[str] = METHODS,
    *,
    together: bool = False,
) -> Iterator[Step]:
    """Yield the steps for what a scheme leaves open.

    ``ends``: groups of tensors at the ends of the model, which may get room. ``methods``: of finding ranges,
    for which there are statistics. ``together``: scales per channel and corrected biases are one step.
    """
    kind = WeightKind(True, scheme.weight_method)
    if together and scheme.per_channel == AUTO == scheme.correct_biases:
        yield Step(lambda best: [(best.with_(kind=kind, corrected=True), _BOTH)])
    else:
        if scheme.per_channel == AUTO:
            yield Step(lambda best: [(best.with_(kind=kind), _PER_CHANNEL)])
        if scheme.correct_biases == AUTO:
            yield Step(lambda best: [(best.with_(corrected=True), _CORRECTED)])
    if scheme.calibrate_method == AUTO and not scheme.moving_average:
        if ends:
            roomy = [dict.fromkeys(groups, "Wide") for groups in ends]
            yield Step(lambda best: [(best.with_(methods=one), _ROOM) for one in roomy])
        if methods:
            yield Step(lambda best: [(best.with_(method=method), _METHOD[method]) for method in methods])


def settings_of(start: Setting, found: Sequence[Step]) -> int:
    """Return how many settings are measured at most: the start, and those that steps lead to from it."""
    return 1 + sum(setting != start for step in found for setting, _ in step.settings(start))
