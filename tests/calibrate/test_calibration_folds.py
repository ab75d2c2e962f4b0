"""Folds of the samples: every fourth one. Oracle: calibration on the samples of the other folds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ops.formats import FORMATS
from tests.helpers import plans
from transforms.calibrate.cache import calibrate_cached
from transforms.calibrate.calibrate import Calibration, CalibrationOptions, calibrate
from transforms.run.feeds import open_feeds
from transforms.run.workers import Workers
from transforms.runtime.inputs import model_inputs

GRAPH = plans.graph("(float[4,8] x) => (float[4,8] y) { r = Relu(x) y = MatMul(r, w) }", {"w": (8, 8)})
NAMES, CHANNELS = ["x", "r", "y"], [("r", 1)]
RANDOM = np.random.default_rng(0)
SAMPLES = [(str(i), {"x": (1 + i) * RANDOM.standard_normal((4, 8)).astype(np.float32)}) for i in range(9)]
METHODS = ["MinMax", "MSE", "Percentile", "Extrapolated"]


def _without(fold: int) -> Calibration:
    others = [one for place, one in enumerate(SAMPLES) if place % 4 != fold]
    return calibrate(GRAPH, NAMES, others, CalibrationOptions("MSE"), channels=CHANNELS)


def _ranges(found: Calibration, method: str) -> list[tuple[float, float]]:
    found = found.with_(CalibrationOptions(method))
    return [found.range(name, FORMATS["int8"], symmetric=False) for name in NAMES]


def _is_alike(one: Calibration, other: Calibration) -> None:
    for method in METHODS:
        np.testing.assert_allclose(_ranges(one, method), _ranges(other, method), rtol=1e-9)
    for name in NAMES:
        assert one.numbers(name) == other.numbers(name)
    np.testing.assert_allclose(one.means(CHANNELS)["r", 1], other.means(CHANNELS)["r", 1], rtol=1e-12)


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("workers", [False, True])
def test_without_a_fold_there_are_the_others(halved: bool, workers: bool) -> None:
    options, shared = CalibrationOptions("MSE"), Workers() if workers else None
    how = {"channels": CHANNELS, "halved": halved, "workers": shared}
    found = calibrate(GRAPH, NAMES, SAMPLES, options, folded=True, **how)  # type: ignore[arg-type]
    assert len(found.folds) == 4
    for fold in range(4):
        _is_alike(found.without_fold(fold), _without(fold))
    plain = calibrate(GRAPH, NAMES, SAMPLES, options, **how)  # type: ignore[arg-type]
    for method in METHODS:
        assert _ranges(found, method) == _ranges(plain, method)
        for half in range(2 * halved):
            options = CalibrationOptions(method)
            assert _ranges(found.half(half, options), method) == _ranges(plain.half(half, options), method)


def test_a_cache_has_them_too(tmp_path: Path) -> None:
    feeds = open_feeds([feed for _, feed in SAMPLES], model_inputs(GRAPH))
    how = {"channels": CHANNELS, "halved": True, "folded": True}
    for known in (0, 3):
        found, count = calibrate_cached(
            tmp_path / "cache",
            GRAPH,
            NAMES,
            feeds,
            CalibrationOptions("MSE"),
            **how,  # type: ignore[arg-type]
        )
        assert count == known and len(found.folds) == 4 and len(found.halves) == 2
        _is_alike(found.without_fold(1), _without(1))


def test_a_tensor_without_numbers_in_other_folds_has_the_range_of_all() -> None:
    feeds = [(str(i), {"x": np.ones((4, 8), np.float32)}) for i in range(1)]
    found = calibrate(GRAPH, NAMES, feeds, folded=True)
    assert _ranges(found.without_fold(0), "MinMax") == _ranges(found, "MinMax")
