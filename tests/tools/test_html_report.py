"""Oracle: comparisons made up by hand, and what the page must then say."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from onnx_narrow.charts.html_report import page
from onnx_narrow.charts.report_style import STYLE
from ops.metrics import sums
from transforms.compare.compare_models import ModelComparison
from transforms.compare.compare_results import compare_arrays
from transforms.compare.describe_model import ModelDescription
from transforms.compare.grid_histogram import GridHistogram
from transforms.compare.match_tensors import Match
from transforms.compare.measure_run import Costs, Measurement
from transforms.compare.tensor_statistics import LayerStatistics
from transforms.run.turns import Timing

X = np.random.default_rng(0).standard_normal(200)


def layer(name: str, error: float, *, is_weight: bool = False) -> LayerStatistics:
    tensor = gs.Variable(name, np.float32)
    match = Match(name, f"{name}_layer", "Conv", "int8", is_weight, tensor, tensor, None)
    return LayerStatistics(match, total=sums(X, X * (1 + error)), low=float(X.min()), high=float(X.max()))


def description(name: str, size: int, subgraphs: int = 0) -> ModelDescription:
    weights = Counter({"float32": 1200}) if name == "float" else Counter({"int8": 1200})
    return ModelDescription(
        name, size, 17, subgraphs, Counter({"Conv": 3, "Relu": 2}), weights, Counter({"int8": 5})
    )


def comparison(*layers: LayerStatistics, **changes: object) -> ModelComparison:
    histogram = GridHistogram(float(X.min()), float(X.max()))
    histogram.add(X, np.rint(X * 8) / 8)
    fields: dict = {
        "models": (description("float", 4_000_000), description("small", 1_000_000)),
        "costs": Costs(
            Measurement(0.01, Timing(0.002, 0.001, 0.003, 9), 5_000_000),
            Measurement(0.02, Timing(0.001, 0.001, 0.001, 9), None),
            Timing(0.4, 0.39, 0.41, 9),
        ),
        "widened": 0,
        "samples": 3,
        "results": [compare_arrays("s", "out", X, X * 1.01)],
        "pooled": {"out": sums(X, X * 1.01)},
        "layers": list(layers),
        "missing": [],
        "worst": list(layers[:1]),
        "histograms": [histogram][: len(layers)],
    }
    return ModelComparison(**(fields | changes))


def text_of(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html.split("<body>")[1])


def test_figures_at_the_top() -> None:
    text = text_of(page(comparison(layer("a", 0.1))))
    for words in (
        "SQNR, 3 samples pooled 40 dB",
        "Size against float 25 %",
        "Time against float 2.5 times faster",
    ):
        assert words in re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    ("ratio", "said", "more"),
    [
        ((1.2, 1.1, 1.3), "1.2 times slower", "1.2 times slower than float (1.10 to 1.30)"),
        ((1.01, 0.99, 1.02), "as fast", "as fast as float (0.99 to 1.02 times its time)"),
        ((0.17, 0.1, 4.5), "unknown", "unknown, times scatter: the machine is too busy"),
    ],
)
def test_time_is_that_of_neighbours_or_unknown(
    ratio: tuple[float, float, float], said: str, more: str
) -> None:
    """Not of the medians of each model, of which that of the quantized one is half of the other."""
    found = comparison(layer("a", 0.1))
    found.costs = replace(found.costs, ratio=Timing(*ratio, 9))
    text = re.sub(r"\s+", " ", text_of(page(found)))
    assert f"Time against float {said} " in text and f"the processor's time: {more}." in text


def test_models_and_their_formats() -> None:
    text = re.sub(r"\s+", " ", text_of(page(comparison(layer("a", 0.1)))))
    assert "Weights, stored as float32 1,200 int8 1,200" in text
    assert "Peak memory to open and run 5.00 MB not measured" in text and "Conv 3 , Relu 2" in text


def test_layers_of_both_kinds_are_apart() -> None:
    html = page(comparison(layer("act", 0.1), layer("weight", 0.01, is_weight=True)))
    activations = html[html.index("<h2>Activations") : html.index("<h2>Weights")]
    weights = html[html.index("<h2>Weights") : html.index("<h2>The worst")]
    assert "act_layer" in activations and "weight_layer" not in activations and "weight_layer" in weights


def test_worst_come_first_and_keep_their_place_in_execution() -> None:
    html = page(comparison(layer("good", 0.001), layer("bad", 0.1)))
    rows = re.findall(r"<tr><td>(\d+)</td><td><code>(\w+)</code>", html[html.index("Lowest SQNR") :])
    assert rows[:2] == [("2", "bad"), ("1", "good")]


def test_identical_layers_are_counted() -> None:
    text = text_of(page(comparison(layer("a", 0.1), layer("same", 0.0))))
    assert "1 of 2 are identical and lie on the upper edge" in text


def test_missing_tensors_are_listed() -> None:
    html = page(comparison(layer("a", 0.1), missing=["fused<1>", "fused2"]))
    assert "2 tensors of the float model without a counterpart" in html
    assert "<li><code>fused&lt;1&gt;</code></li>" in html


def test_bodies_that_can_not_be_watched_are_told() -> None:
    models = description("float", 10, subgraphs=4), description("small", 10, subgraphs=2)
    text = text_of(page(comparison(layer("a", 0.1), models=models)))
    assert "inside the 4 bodies of If, Loop and Scan are not compared" in text and "5 in 5 graphs" in text


def test_mismatch_is_shown_in_place_of_the_range() -> None:
    odd = layer("a", 0.1)
    odd.mismatch = "shape [1] in the float model, [2] in the other"
    assert odd.mismatch in text_of(page(comparison(odd)))


def test_widened_nodes_are_told() -> None:
    assert "12 nodes and ends of the quantized model" in text_of(
        page(comparison(layer("a", 0.1), widened=12))
    )


def test_no_layer_at_all() -> None:
    html = page(comparison(worst=[], histograms=[]))
    assert html.count("None of the float model's are in the quantized one") == 2 and "The worst" not in html


def test_results_with_nan() -> None:
    results = [compare_arrays("s", "out", X, np.where(X > 0, X, math.nan))]
    html = page(comparison(layer("a", 0.1), results=results))
    assert "1 results hold NaN or infinite elements" in html and 'class="alarm"' in html


def test_outputs_have_a_row_each() -> None:
    results = [compare_arrays("s", output, X, X * 1.1) for output in ("boxes", "scores")]
    html = page(comparison(layer("a", 0.1), results=results))
    assert "<td><code>boxes</code></td>" in html and "<td><code>scores</code></td>" in html


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.1 of a colour #rrggbb."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    low, high = sorted([luminance(one), luminance(two)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("name", "least"), [("ink", 7), ("soft", 4.5), ("alarm", 4.5), ("first", 3), ("second", 3)]
)
def test_contrast_is_accessible(scheme: int, name: str, least: float) -> None:
    """WCAG 2.1: 4.5 for text (AA), 3 for graphics."""
    colours = [
        dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)
    ]
    assert contrast(colours[scheme][name], colours[scheme]["page"]) >= least
