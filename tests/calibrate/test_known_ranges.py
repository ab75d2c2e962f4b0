"""Ranges of the same statistics are found once. Oracle: those of a calibration that knows none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ops.formats import get_format
from transforms.calibrate import calibration
from transforms.calibrate.calibration import Calibration
from transforms.calibrate.histogram import Histogram
from transforms.calibrate.methods import CalibrationOptions, choose_range
from transforms.calibrate.range_statistics import RangeStats, add_to_all

INT8 = get_format("int8")
KINDS = [
    CalibrationOptions("MSE"),
    CalibrationOptions("MSE", power_of_two=True),
    CalibrationOptions("MinMax"),
    CalibrationOptions("MinMax", moving_average=True),
    CalibrationOptions("Percentile", percentile=90),
    CalibrationOptions("Percentile", percentile=99),
    CalibrationOptions("MinMax", tensors={"a": "Wide"}),
]


def stats(seed: int) -> RangeStats:
    one = RangeStats(histogram=Histogram())
    for _ in range(2):
        add_to_all([one], np.random.default_rng(seed).laplace(size=5000).astype(np.float32), 0.3)
    return one


def test_a_range_is_found_once_for_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = [{name: stats(3 * number + i) for i, name in enumerate("ab")} for number in (1, 2)]
    whole = Calibration(CalibrationOptions(), {name: stats(i) for i, name in enumerate("ab")}, halves)
    calls = list[Any]()

    def _counting(*given: Any, **named: Any) -> tuple[float, float]:
        calls.append(given)
        return choose_range(*given, **named)

    monkeypatch.setattr(calibration, "choose_range", _counting)
    parts = [part for one in KINDS for part in (whole.with_(one), whole.half(0, one), whole.half(1, one))]
    for repeat in range(2):
        for part in parts:
            for name in part.observed:
                for symmetric in (False, True):
                    wanted = choose_range(
                        part.observed[name],
                        INT8,
                        symmetric=symmetric,
                        options=part.options,
                        method=part.options.tensors.get(name),
                    )
                    assert part.range(name, INT8, symmetric=symmetric) == wanted
        assert len(calls) == 3 * 2 * 2 * len(KINDS) - 3 * 2, repeat  # b is MinMax in two of them
