"""What of a comparison of settings there is time for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.choose_ranges.setting import setting_of
from transforms.choose_ranges.steps import methods_for, settings_of, steps
from transforms.choose_ranges.work import runs_for, too_few
from transforms.scheme import Scheme


@dataclass(frozen=True)
class Means:
    """How many ``runs`` there is time for, and of what: other ``methods`` for ranges, ``variants`` of the
    graph, ``rooms`` at its ends, and any ``steps`` from the rules at all; scales per channel and corrected
    biases ``together`` are one.
    """

    methods: Sequence[str]
    variants: int = 0
    rooms: bool = True
    steps: bool = True
    together: bool = False
    runs: int = 0

    def settings(self, scheme: Scheme) -> int:
        """Return how many settings are measured at most."""
        start = setting_of(scheme.by_rule())
        ends, beyond = ([["first"], ["last"]], ["any"]) if self.rooms else ([], [])
        tried = steps(scheme, ends, self.methods, beyond=beyond, together=self.together)
        found = list(tried) if self.steps else []
        return settings_of(start, found) + self.variants

    def least(self, scheme: Scheme) -> int:
        """Return how many settings are measured if the ends of the model get no room."""
        return replace(self, rooms=False).settings(scheme)


def affordable(
    scheme: Scheme,
    graph: gs.Graph,
    calibration: Calibration,
    count: int,
    variants: int,
    *,
    proposed: bool,
    searched: int,
) -> Means | None:
    """Return what there is time for, None if not for a comparison.

    ``count``: the samples that were calibrated on. ``variants``: rewritten graphs. ``proposed``: whether
    there is another one, of which more is to be expected than of any setting: then fewer are compared.
    ``searched``: models that were run to find outliers.
    """
    kinds = (True, False) if calibration.has_histograms else (False,)
    every = [methods_for(scheme, counted=counted) for counted in kinds]
    for means in _means(every, variants, proposed):
        clips = "MSE" in (*means.methods, scheme.by_rule().calibrate_method)
        runs = runs_for(
            graph,
            calibration,
            count,
            clips=clips,
            searched=searched,
            variants=means.variants,
            proposed=proposed,
        )
        if not too_few(runs, means.settings(scheme) + proposed):
            return replace(means, runs=runs)
    return None


def _means(every: Sequence[Sequence[str]], variants: int, proposed: bool) -> Iterator[Means]:
    """Yield what may be compared, most first: methods are worth more than all that they leave no time for."""
    for methods in every:
        for count in sorted({variants, 0}, reverse=True):
            yield Means(methods, count)
        yield Means(methods, rooms=False)
        yield Means(methods, rooms=False, together=True)
    if proposed:
        yield Means((), rooms=False, steps=False)
