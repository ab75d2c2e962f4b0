"""Oracle: the samples themselves, and how often they were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.helpers import plans
from tests.helpers.quantization import random, scheme
from transforms.calibrate.cache import encode
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.feeds import open_feeds
from transforms.run.image_options import ImageOptions
from transforms.runtime.inputs import model_inputs

PRODUCT = "(float[N,4] x) => (float[N,6] y) { y = MatMul(x, w) }"
SAMPLES = [{"x": random(2, 4, seed=i)} for i in range(5)]
EXTREMES = [np.concatenate([feed["x"] for feed in SAMPLES[:n]]) for n in range(1, 6)]


class Reader:
    """As ONNX Runtime's CalibrationDataReader."""

    def __init__(self) -> None:
        self._feeds = iter(SAMPLES)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return next(self._feeds, None)


def generator() -> Iterator[dict[str, NDArray[np.float32]]]:
    yield from SAMPLES


def planned(**changes: object) -> QuantizationPlan:
    return QuantizationPlan(plans.graph(PRODUCT, {"w": (4, 6)}), scheme("U8S8", **changes))


def found(data: CalibrationData, **changes: object) -> tuple[float, float]:
    """Return the range that is measured of the input."""
    plan = planned(**changes)
    calibration = calibrate_plan(plan, data)
    assert calibration is not None
    row = plan.quantizations[0].steps[0].format
    return calibration.range("x", row, symmetric=False)


@pytest.mark.parametrize("kind", ("list", "generator", "reader", "folder", "feeds"))
def test_every_source_gives_the_same_ranges(kind: str, tmp_path: Path) -> None:
    for i, feed in enumerate(SAMPLES):
        np.savez(tmp_path / f"{i}.npz", **feed)
    feeds = open_feeds(SAMPLES, model_inputs(planned().graph))
    sources = {
        "list": SAMPLES,
        "generator": generator(),
        "reader": Reader(),
        "folder": tmp_path,
        "feeds": feeds,
    }
    assert found(CalibrationData(sources[kind])) == (EXTREMES[-1].min(), EXTREMES[-1].max())


def test_no_more_samples_than_the_limit() -> None:
    for limit in (1, 3, 9):
        seen = EXTREMES[min(limit, 5) - 1]
        assert found(CalibrationData(SAMPLES, limit=limit)) == (seen.min(), seen.max())


def test_images_are_read_as_told(tmp_path: Path) -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    text = "(float[1,1,4,4] x) => (float[1,2,4,4] y) { y = Conv(x, k) }"
    plan = QuantizationPlan(plans.graph(text, {"k": (2, 1, 1, 1)}), scheme("U8S8"))
    calibration = calibrate_plan(plan, CalibrationData(tmp_path, ImageOptions(mean=(3.0,), std=(2.0,))))
    assert calibration is not None
    row = plan.quantizations[0].steps[0].format
    assert calibration.range("x", row, symmetric=False) == (-1.5, 6)


def test_the_method_of_the_scheme_is_used() -> None:
    large = [{"x": np.concatenate([random(999, 4), np.full((1, 4), 100, np.float32)])}]
    data = CalibrationData(large)
    assert found(data)[1] == 100
    assert found(data, calibrate_method="Percentile", percentile=99)[1] < 5
    two = [{"x": np.full((1, 4), v, np.float32)} for v in (1, 3)]
    # The first sample starts the average, each other moves it by the constant's share of the way.
    average = found(CalibrationData(two), moving_average=True, averaging_constant=0.25)
    assert average[1] == pytest.approx(1.5)


def test_measured_are_ranges_and_the_channels_that_weights_need() -> None:
    for method, names in (("MinMax", []), ("WeightedMSE", [("x", 1)])):
        calibration = calibrate_plan(planned(weight_method=method), CalibrationData(SAMPLES))
        assert calibration is not None and sorted(calibration.observed) == ["x", "y"]
        squares = calibration.mean_squares([("x", 1), ("y", 1), ("x", 0)])
        assert sorted(squares) == names
        for name in names:
            np.testing.assert_allclose(squares[name], np.square(EXTREMES[-1]).mean(0), rtol=1e-6)


def test_nothing_is_measured_where_nothing_is_needed() -> None:
    for name in ("MX9", "BF16"):
        plan = QuantizationPlan(plans.graph(PRODUCT, {"w": (4, 6)}), scheme(name))
        assert calibrate_plan(plan, CalibrationData(Reader())) is calibrate_plan(plan, None) is None


def test_progress_counts_samples() -> None:
    seen: list[tuple[int, int | None]] = []
    calibrate_plan(planned(), CalibrationData(SAMPLES), progress=lambda *at: seen.append(at))
    assert seen == [(i, 5) for i in range(1, 6)]
    calibrate_plan(planned(), CalibrationData(generator()), progress=lambda *at: seen.append(at))
    assert seen[5:] == [(i, None) for i in range(1, 6)]


def test_the_cache_is_read_the_second_time(tmp_path: Path) -> None:
    data = CalibrationData(SAMPLES, cache=tmp_path / "cache.json")
    runs: list[int] = []
    for _ in range(2):
        first = calibrate_plan(planned(), data, progress=lambda done, _: runs.append(done))
        assert runs == [1, 2, 3, 4, 5]
    fresh = calibrate_plan(planned(), CalibrationData(SAMPLES))
    assert first is not None and fresh is not None
    row = planned().quantizations[0].steps[0].format
    for name in "xy":
        assert first.range(name, row, symmetric=False) == fresh.range(name, row, symmetric=False)
    other = CalibrationData(SAMPLES, limit=2, cache=tmp_path / "cache.json")
    calibrate_plan(planned(), other, progress=lambda done, _: runs.append(done))
    assert runs[5:] == [1, 2]
    with pytest.raises(ValueError, match="cannot be read twice"):
        calibrate_plan(planned(), CalibrationData(generator(), cache=tmp_path / "cache.json"))


def test_halves_and_the_whole_are_those_of_their_samples() -> None:
    """Oracle: the same plan measured on every second sample alone, bit for bit."""
    halved = calibrate_plan(planned(calibrate_method="MSE"), CalibrationData(SAMPLES), halved=True)
    assert halved is not None
    for part, samples in zip(
        (halved.observed, *halved.halves), (SAMPLES, SAMPLES[::2], SAMPLES[1::2]), strict=True
    ):
        alone = calibrate_plan(planned(calibrate_method="MSE"), CalibrationData(samples))
        assert alone is not None
        assert {name: encode(one) for name, one in part.items()} == {
            name: encode(one) for name, one in alone.observed.items()
        }
    assert halved.numbers("x") == sum(feed["x"].size for feed in SAMPLES)


@pytest.mark.parametrize("source", (SAMPLES, generator))
@pytest.mark.parametrize(("most", "counted"), ((99, False), (100, True)))
def test_histograms_of_too_many_numbers_are_given_up(source: object, most: int, counted: bool) -> None:
    """Five samples of 8 and 12 numbers; how many a generator will make is not known: they are counted."""
    data = CalibrationData(source() if callable(source) else source)
    found = calibrate_plan(planned(), data, halved=True, most=most)
    assert found is not None
    assert found.has_histograms is (counted or callable(source))
    assert found.numbers("x") == 40
    assert (found.observed["x"].low, found.observed["x"].high) == (EXTREMES[-1].min(), EXTREMES[-1].max())
    needed = calibrate_plan(planned(calibrate_method="MSE"), CalibrationData(SAMPLES), halved=True, most=1)
    assert needed is not None
    assert needed.has_histograms


@pytest.mark.parametrize(
    ("last", "differ"), (((0.0, 2.0), False), ((0.0, 1.99), False), ((-0.1, 2.0), True), ((0.0, 2.1), True))
)
def test_halves_that_have_another_range(last: tuple[float, float], differ: bool) -> None:
    """The range of a tensor holds zero; the first half has 0 to 2."""
    inputs = [np.full((2, 4), 1, np.float32), np.full((2, 4), 1, np.float32)]
    inputs[0][0, :2], inputs[1][0, :2] = (0.5, 2.0), last
    halved = calibrate_plan(planned(), CalibrationData([{"x": one} for one in inputs]), halved=True)
    assert halved is not None
    assert halved.halves_differ(["x"]) is differ


def test_an_empty_cache_has_the_range_of_what_it_is_joined_into() -> None:
    text = """(float[N,4] past, float[M,4] x) => (float[T,6] y, float[N,6] z) {
        all = Concat <axis = 0> (past, x) y = MatMul(all, w) z = MatMul(past, w) }"""
    plan = QuantizationPlan(plans.graph(text, {"w": (4, 6)}), scheme("U8S8"))
    feeds = [{"past": np.zeros((0, 4), np.float32), "x": random(3, 4, seed=i)} for i in range(4)]
    calibration = calibrate_plan(plan, CalibrationData(feeds), halved=True)
    assert calibration is not None
    whole, half = (
        (min(x.min() for x in some), max(x.max() for x in some))
        for some in ([feed["x"] for feed in feeds], [feed["x"] for feed in feeds[::2]])
    )
    row = plan.quantizations[0].steps[0].format
    seen = calibration.observed["past"]
    assert (seen.low, seen.high) == whole
    of_half = calibration.half(0, calibration.options).observed["past"]
    assert (of_half.low, of_half.high) == half
    assert calibration.range("past", row, symmetric=False) == calibration.range("all", row, symmetric=False)
