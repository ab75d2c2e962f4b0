"""Oracles: the rules for what follows them, and counts of runs by hand."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.benchmarks.chain_models import CHANNELS, SIDE, chain
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.calibrate.calibration import Calibration
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.range_statistics import RangeStats
from transforms.choose_ranges import work
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import Scheme, preset


def quantized(model: onnx.ModelProto, scheme: Scheme, count: int = 6) -> tuple[bytes, str]:
    random = np.random.default_rng(1)
    shape = 1, CHANNELS, SIDE, SIDE
    feeds = [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(count)]
    graph = model_io.load(model)
    done = quantize_graph(graph, scheme, CalibrationData(feeds))
    return graph_proto.export_model(graph).SerializeToString(deterministic=True), done.choice


@pytest.mark.parametrize("config", ("U8S8", "A8W8"))
def test_a_model_whose_nodes_take_all_the_time_follows_the_rules(
    monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    """60 nodes, where there is time for 40: with a word, and to the bit."""
    model, scheme = chain("shared", 60), preset(config)
    assert "6 held-out samples" in quantized(model, scheme)[1]
    monkeypatch.setattr(work, "_PAID", 40 * work._NODE)
    made, said = quantized(model, scheme)
    assert said == "Ranges by rule: comparing settings of so many nodes takes too long"
    assert made == quantized(model, scheme.by_rule())[0]


def test_ranges_of_least_error_are_not_compared_if_only_they_take_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U8S8 has the lowest and highest numbers by rule, whatever is chosen beside them."""
    model, scheme = chain("shared", 60), preset("U8S8").with_(correct_biases=False, per_channel=False)
    with_methods = quantized(model, scheme)[1]
    monkeypatch.setattr(work, "_PAID", 90 * work._NODE)
    without = quantized(model, scheme)[1]
    assert "ranges MinMax" in without
    assert tried(without) == tried(with_methods) - 1


def tried(said: str) -> int:
    found = re.search(r"(\d+) settings tried", said)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    ("clips", "searched", "variants", "proposed"),
    (
        (False, 0, 0, False),
        (True, 0, 0, False),
        (False, 2, 0, False),
        (True, 0, 2, False),
        (True, 0, 1, True),
    ),
)
@pytest.mark.parametrize("stored", (0, 6_000_000))
def test_all_that_is_done_beside_runs_leaves_fewer_of_them(
    clips: bool, searched: int, variants: int, proposed: bool, stored: int
) -> None:
    """By hand: 99 nodes, 33 weights of 17 numbers, 10 tensors of 1,000 numbers in each of 8 samples."""
    graph = _with_weight(model_io.load(chain("own", 99)), stored)
    observed = {f"t{number}": RangeStats(0.0, 1.0, count=8000) for number in range(10)}
    calibration = Calibration(CalibrationOptions(), observed)
    run = 10_000 + 1800 * 99
    model = 200_000 * 99 + 2 * (33 * 17 + stored)
    beside = model * (4 if searched else 1 + variants + proposed) + (
        150_000 * 10 * (1 + variants) if clips else 0
    )
    beside += (variants + 2 * proposed) * 80_000 / 4 + 2 * searched * (run + 10_000 / 4)
    by_hand = int((3e8 + 5 * 80_000 / 4 - beside) / run)
    asked = {"clips": clips, "searched": searched, "variants": variants, "proposed": proposed}
    assert work.runs_for(graph, calibration, 8, **asked) == by_hand


def _with_weight(graph: gs.Graph, numbers: int) -> gs.Graph:
    """Return the graph with a weight of so many numbers at its first node."""
    if numbers:
        graph.nodes[0].inputs.append(gs.Constant("more", np.zeros(numbers, np.int8)))
    return graph


@pytest.mark.parametrize("stored", (0, 20_000_000))
@pytest.mark.parametrize("nodes", (9, 99, 300, 2001))
def test_nodes_and_weights_leave_few_models_for_outliers(nodes: int, stored: int) -> None:
    """By hand: 8 samples of 100,000 numbers and 30,000 in products, four of which run on a model."""
    graph, float_run = _with_weight(model_io.load(chain("own", nodes)), stored), 100_000 / 4 + 30_000 / 3
    model = 200_000 * nodes + 2 * (nodes // 3 * 17 + stored)
    one = model + 4 * (130_000 + 1800 * nodes + float_run)
    by_hand = int(max(0, 2.5e8 + 5 * 8 * float_run - model) / one)
    assert work.models_to_search(graph, 100_000, 30_000, 8, 4) == by_hand


@pytest.mark.parametrize(("kernel", "stride"), ((1, 1), (3, 1), (3, 2), (1, 3), (8, 1)))
@pytest.mark.parametrize("known", (True, False))
def test_products_of_a_convolution_are_those_of_its_results(kernel: int, stride: int, known: bool) -> None:
    """By hand: 4 channels of 8 by 8 numbers, 6 of results; of unknown shapes the strides tell."""
    side = (8 - kernel) // stride + 1
    shapes = ([1, 4, 8, 8], [1, 6, side, side]) if known else ([1, 4, "h", "w"], None)
    data, made = gs.Variable("x", np.float32, shapes[0]), gs.Variable("y", np.float32, shapes[1])
    weight = gs.Constant("w", np.zeros((6, 4, kernel, kernel), np.float32))
    node = gs.Node("Conv", attrs={"strides": [stride] * 2}, inputs=[data, weight], outputs=[made])
    graph = gs.Graph([node], [data], [made])
    places = side**2 if known else 64 / stride**2
    by_hand = places * 6 * 4 * kernel**2 / 128
    assert work.numbers_for_products(graph, {"x": 4 * 64}) == pytest.approx(by_hand, rel=1e-12)


def test_fewer_settings_leave_time_for_more_samples() -> None:
    assert [work.samples_for(24, settings, 32) for settings in (2, 3, 6)] == [12, 8, 4]
    assert work.samples_for(24, 3, 7) == 7
    assert [work.samples_for(runs, 3, 32) for runs in (3, 10, 16)] == [2, 3, 4]
    assert work.too_few(11, 6)
    assert not work.too_few(12, 6)


@pytest.mark.parametrize(
    ("runs", "opened", "settings", "most", "found"),
    [
        (200, 10, 5, 32, 30),  # four settings leave 22 runs beside 40, five none
        (400, 10, 5, 32, 32),  # enough for all
        (150, 10, 5, 32, 32),  # four settings leave none
        (80, 0, 5, 8, 8),  # enough for all
        (79, 0, 5, 8, 6),  # of each half as many
        (89, 0, 9, 8, 8),  # 5 samples are too few
        (100, 0, 5, 14, 12),
    ],
)
def test_measured_biases_keep_their_runs(
    runs: int, opened: int, settings: int, most: int, found: int
) -> None:
    """By hand: 40 runs for biases, and settings times samples for the comparison."""
    assert work.samples_beside_biases(runs, opened, settings, most) == found
