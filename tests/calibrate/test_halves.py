"""Halves of the samples: every second one. Oracle: ranges written down here."""

from __future__ import annotations

import numpy as np

from ops.formats import FORMATS
from tests.helpers import plans
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.calibrate.calibration import Calibration, CalibrationOptions
from transforms.calibrate.range_statistics import RangeStats
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.scheme import preset


def _stats(*ranges: tuple[float, float]) -> RangeStats:
    found = RangeStats()
    for low, high in ranges:
        found.add_range(low, high, 0.01)
    return found


def test_a_tensor_without_numbers_in_a_half_has_the_range_of_all() -> None:
    nothing = (float("inf"), float("-inf"))
    halves = [{"past": _stats(nothing), "x": _stats((0, 1))}, {"past": _stats((-3, 2)), "x": _stats((0, 4))}]
    whole = {"past": _stats(nothing, (-3, 2)), "x": _stats((0, 1), (0, 4))}
    calibration = Calibration(CalibrationOptions(), whole, halves)
    ranges = [
        calibration.half(number, CalibrationOptions()).range(name, FORMATS["int8"], symmetric=True)
        for number in range(2)
        for name in ("past", "x")
    ]
    assert ranges == [(-3, 2), (0, 1), (-3, 2), (0, 4)]
    assert not calibration.halves_differ(["past"]) and calibration.halves_differ(["x"])
    assert calibration.halves_differ(["x", "constant"])  # of which nothing is measured


def test_prompts_and_later_tokens_take_turns() -> None:
    """Earlier keys are empty in every second sample: it was refused, unless with --fast."""
    text = """(float[1,S,8] x, float[1,P,8] past) => (float[1,S,8] y) {
        m = MatMul(past, v) k = Concat <axis = 1> (m, x) t = Transpose <perm = [0, 2, 1]> (k)
        s = MatMul(x, t) p = Softmax(s) o = MatMul(p, k) y = MatMul(o, w) }"""
    graph, rng = plans.graph(text, {"v": (8, 8), "w": (8, 8)}), np.random.default_rng(0)
    feeds = [
        {"x": rng.standard_normal((1, 3, 8)), "past": rng.standard_normal((1, 5 * (number % 2), 8))}
        for number in range(8)
    ]
    feeds = [{name: array.astype(np.float32) for name, array in feed.items()} for feed in feeds]
    wanted = [open_model(graph).run(feed)["y"] for feed in feeds]
    quantize_graph(graph, preset("A8W8"), CalibrationData(feeds))
    model = open_model(graph)
    for feed, expected in zip(feeds, wanted, strict=True):
        error = np.square(model.run(feed)["y"] - expected).sum()
        assert error < 1e-2 * np.square(expected).sum()  # 20 dB: 8 bits at five places have some 30


def test_an_output_on_one_scale_with_a_constant() -> None:
    """A Concat joins both, on one scale: the constant was looked for among what was measured."""
    text = """(float[4,8] x) => (float[4,8] y, float[4,8] r) {
        r = MatMul(x, v) j = Concat <axis = 1> (r, c) y = MatMul(j, w) }"""
    graph = plans.graph(text, {"v": (8, 8), "w": (16, 8), "c": (4, 8)})
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((4, 8)).astype(np.float32)} for _ in range(8)]
    scheme = preset("A8W8").with_(align_concat=True)
    assert quantize_graph(graph, scheme, CalibrationData(feeds)).decisions.tried
