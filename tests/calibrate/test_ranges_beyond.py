"""Ranges that reach beyond the samples, and what is decided without them.

Oracles: the float model on unseen samples; errors of settings that are given, by hand.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import plans
from tests.helpers.judged_networks import NETWORKS, network, quantized, ratio, samples
from transforms import model_io
from transforms.calibrate.cache import calibrate_cached
from transforms.calibrate.calibrate import Calibration, CalibrationOptions, calibrate
from transforms.run.feeds import Feeds, open_feeds
from transforms.runtime.inputs import model_inputs
from transforms.scheme import preset

GATE = model_io.load(plans.model("(float[1,4] x) => (float[1,4] y) { h = Neg(x) y = Sigmoid(h) }"))


def gate_feeds(count: int = 8) -> Feeds:
    random = np.random.default_rng(3)
    arrays = [{"x": random.normal(0, 3, (1, 4)).astype(np.float32)} for _ in range(count)]
    return open_feeds(arrays, model_inputs(GATE))


@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_unseen_samples_gain_by_them(number: int) -> None:
    """Means over an image and grades are tensors of few numbers."""
    model, feeds, unseen = network(*NETWORKS[number]), samples(8, 1), samples(28, 2)
    made, done = quantized(model, preset("U8S8").with_(keep_float=False), feeds)
    assert done.scheme is not None
    assert {done.scheme.calibrate_tensors[name] for name in ("p", "y")} == {"Extrapolated"}
    within = quantized(model, done.scheme.with_(calibrate_tensors={}), feeds)[0]
    assert ratio(model, made, unseen) > ratio(model, within, unseen) + 1


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
