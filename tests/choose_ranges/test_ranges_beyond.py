"""Ranges that reach beyond the samples, and what is decided without them.

Oracles: the float model on unseen samples; errors of settings that are given, by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.choose_ranges.test_choose_settings import NETWORKS, network, quantized, ratio, samples
from tests.choose_ranges.test_search import SPREAD, GivenErrors
from tests.helpers import plans
from transforms import model_io
from transforms.calibrate.cache import calibrate_cached
from transforms.calibrate.calibrate import Calibration, CalibrationOptions, calibrate
from transforms.choose_ranges.measure_outputs import Score
from transforms.choose_ranges.search import Search
from transforms.choose_ranges.setting import setting_of
from transforms.choose_ranges.steps import steps
from transforms.run.feeds import Feeds, open_feeds
from transforms.runtime.inputs import model_inputs
from transforms.scheme import preset

GATE = model_io.load(plans.model("(float[1,4] x) => (float[1,4] y) { h = Neg(x) y = Sigmoid(h) }"))


def gate_feeds(count: int = 8) -> Feeds:
    random = np.random.default_rng(3)
    arrays = [{"x": random.normal(0, 3, (1, 4)).astype(np.float32)} for _ in range(count)]
    return open_feeds(arrays, model_inputs(GATE))


@pytest.mark.parametrize("number", [0, 1, 2, 4])
@pytest.mark.parametrize("config", ["A8W8", "U8S8"])
def test_unseen_samples_gain_by_them(config: str, number: int) -> None:
    """Means over an image and grades are tensors of few numbers."""
    model, feeds, unseen = network(*NETWORKS[number]), samples(8, 1), samples(28, 2)
    made, done = quantized(model, preset(config).with_(keep_float=False), feeds)
    assert done.scheme is not None
    assert {done.scheme.calibrate_tensors[name] for name in ("p", "y")} == {"Extrapolated"}
    within = quantized(model, done.scheme.with_(calibrate_tensors={}), feeds)[0]
    assert ratio(model, made, unseen) > ratio(model, within, unseen) + 1


@pytest.mark.parametrize("count", [4, 6, 7])
def test_fewer_than_eight_samples_have_halves_that_tell_nothing(count: int) -> None:
    scheme = quantized(network(*NETWORKS[1]), preset("U8S8"), samples(count, 1))[1].scheme
    assert scheme is not None and "Extrapolated" not in scheme.calibrate_tensors.values()


class RoomErrors(GivenErrors):
    """As GivenErrors: settings with Wide are better, and with Extrapolated by as much again."""

    def score(self, setting: object, rival: Score | None = None) -> Score:
        found, text = super().score(setting, rival), str(setting)
        return Score(
            found.errors * (0.25 if "Extrapolated" in text else 1), found.signal, found.sizes, found.count
        )


@pytest.mark.parametrize(("ends", "methods", "decibels"), [([["y"]], {"y": "Wide"}, 26.0), ([], {}, 20.0)])
def test_what_is_kept_in_float_is_decided_without_them(
    ends: list[list[str]], methods: dict[str, str], decibels: float
) -> None:
    """By hand: signals of 100 with errors of 1; Wide lowers these by 6 dB."""
    scheme = preset("U8S8").with_(per_channel=False, correct_biases=False)
    bench = RoomErrors("Wide", [6.0] * len(SPREAD))
    search = Search(bench, setting_of(scheme.by_rule()))  # type: ignore[arg-type]
    for step in steps(scheme, ends, ("MinMax", "MSE"), beyond=["x", "y"]):
        search.take(step)
    assert search.best.methods == {"x": "Extrapolated", "y": "Extrapolated"}
    assert search.near == search.best.with_(methods=methods)
    assert search.decibels == pytest.approx(decibels, abs=0.01)


def within_limits(found: Calibration) -> bool:
    """Return whether what a gate makes has limits, and what goes into it none."""
    observed = found.observed
    return observed["y"].limits == (0, 1) and observed["h"].limits == (-np.inf, np.inf)


def test_limits_are_known_with_and_without_a_cache(tmp_path: Path) -> None:
    """The file does not hold them: they follow from the graph."""
    path, options = tmp_path / "ranges.json", CalibrationOptions("Extrapolated")
    made = calibrate(GATE, ["h", "y"], gate_feeds(), options)
    assert within_limits(made)
    for known in (0, 2):
        found, taken = calibrate_cached(path, GATE, ["h", "y"], gate_feeds(), options)
        assert taken == known and within_limits(found)
        assert found.observed["h"].ends == made.observed["h"].ends


def test_entries_without_ends_are_measured_again(tmp_path: Path) -> None:
    """As those of earlier versions are."""
    path, options = tmp_path / "ranges.json", CalibrationOptions("Extrapolated")
    calibrate_cached(path, GATE, ["h", "y"], gate_feeds(), options)
    content = json.loads(path.read_text())
    for tensors in content["entries"].values():
        del tensors["h"]["ends"]
    path.write_text(json.dumps(content))
    assert calibrate_cached(path, GATE, ["h", "y"], gate_feeds(), options)[1] == 1
    assert calibrate_cached(path, GATE, ["h", "y"], gate_feeds(), options)[1] == 2
