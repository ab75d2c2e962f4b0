"""Moves of single keys: methods for ranges, scales per channel, headroom at inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator

from transforms.graph.some_names import counted
from transforms.judge.constants import CERTAINTY, CLEAR
from transforms.moves.improve import Best, Candidates
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO
from transforms.scheme.scheme_values import SPREAD, has_headroom

EXTRAPOLATED, WIDE = "Extrapolated", "Wide"


def try_ranges(best: Best) -> None:
    """Try the methods for choosing ranges, once for each form of the graph."""
    if best.ranged is not best.form:
        best.try_schemes("ranges", _ranges(best, best.asked))
        best.ranged = best.form


def try_scales(best: Best) -> None:
    """Try one scale for each weight whose channels have similar ranges, fitted to the inputs of its layer.

    Scales per channel round a weight more finely, so the gain of outputs on samples has to be clear: a gain
    of 1.2 standard errors cost MobileNet 4 dB on other samples, one of 17 gained super-resolution 5 dB.
    """
    if best.asked.per_channel == AUTO and best.scheme.per_channel is True:
        change = "a scale of weights per tensor", best.scheme.with_(per_channel=SPREAD)
        best.try_schemes("scales", [change], certainty=CLEAR)


def try_headroom(best: Best) -> None:
    """Try ranges wider than the samples: at inputs and outputs, and where extremes of the samples scatter.

    Formats with bits to spare have such ranges by rule.
    """
    asked = best.asked
    if not _open_ranges(asked) or has_headroom(asked.format(asked.activation)):
        return
    best.try_schemes("headroom", list(_headroom_schemes(best)), certainty=CERTAINTY)


def _headroom_schemes(best: Best) -> Iterator[tuple[str, Scheme]]:
    form = best.form
    statistics = form.statistics
    assert statistics is not None, "ranges are open"
    computed = [*form.judge.reference.outputs, *form.model.closed_ends]
    outputs, inputs = (
        [group for group in form.model.groups_of(names) if statistics.halves_differ(group)]
        for names in (computed, [str(tensor.name) for tensor in form.graph.inputs])
    )
    for change, groups in (("the outputs", outputs), ("inputs and outputs", [*outputs, *inputs])):
        if groups:
            yield (
                f"ranges with headroom at {change}",
                _methods(best.scheme, WIDE, [name for group in groups for name in group]),
            )
    if beyond := form.model.reaching_beyond():
        words = f"ranges with headroom for {counted(len(beyond), 'tensor')}"
        yield words, _methods(best.scheme, EXTRAPOLATED, beyond)


def _methods(scheme: Scheme, method: str, names: list[str]) -> Scheme:
    return scheme.with_(calibrate_tensors={**dict.fromkeys(names, method), **scheme.calibrate_tensors})


def _ranges(best: Best, asked: Scheme) -> Candidates:
    for method in _methods_of(best, asked):
        words = "ranges with headroom" if method == EXTRAPOLATED else f"ranges by {method}"
        yield words, best.scheme.with_(calibrate_method=method)


def _open_ranges(asked: Scheme) -> bool:
    return asked.calibrate_method == AUTO and not asked.moving_average


def _methods_of(best: Best, asked: Scheme) -> list[str]:
    method, statistics = best.scheme.calibrate_method, best.form.statistics
    if not _open_ranges(asked) or statistics is None:
        return [method]
    methods = ["MinMax", *(["MSE"] if statistics.has_histograms and method != EXTRAPOLATED else [])]
    return list(dict.fromkeys([method, *methods]))
