"""Oracle: the same arrays computed in NumPy with ml_dtypes' rounding, and metrics of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest

from ops import metrics
from transforms.compare.grid_histogram import GridHistogram
from transforms.compare.match_tensors import match_tensors
from transforms.compare.tensor_statistics import LayerStatistics, SideBySide
from transforms.graph.dtypes import BFLOAT16, FLOAT

RNG = np.random.default_rng(11)
W = RNG.standard_normal((8, 8)).astype(np.float32)


def bf16(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def build(form: str) -> gs.Graph:
    """x @ w, then Relu; as float, with Casts around everything, or with bfloat16 tensors."""
    x, z = gs.Variable("x", np.float32, ["n", 8]), gs.Variable("z", np.float32, ["n", 8])
    y = gs.Variable("y", np.float32, ["n", 8])
    if form == "float":
        nodes = [gs.Node("MatMul", inputs=[x, gs.Constant("w", W)], outputs=[y])]
        return gs.Graph([*nodes, gs.Node("Relu", inputs=[y], outputs=[z])], [x], [z], opset=17, ir_version=9)
    w = gs.Constant("w", W.astype(ml_dtypes.bfloat16))
    if form == "bf16 ends":
        x, y, z = (gs.Variable(name, BFLOAT16, ["n", 8]) for name in "xyz")
        nodes = [gs.Node("MatMul", inputs=[x, w], outputs=[y]), gs.Node("Relu", inputs=[y], outputs=[z])]
        return gs.Graph(nodes, [x], [z], opset=17, ir_version=9)
    if form == "bf16":
        x_low, y_low, z_low = (gs.Variable(f"{name}_bf16", BFLOAT16, ["n", 8]) for name in "xyz")
        nodes = [
            gs.Node("Cast", attrs={"to": BFLOAT16}, inputs=[x], outputs=[x_low]),
            gs.Node("MatMul", inputs=[x_low, w], outputs=[y_low]),
            gs.Node("Relu", inputs=[y_low], outputs=[z_low]),
            gs.Node("Cast", attrs={"to": FLOAT}, inputs=[z_low], outputs=[z]),
        ]
        return gs.Graph(nodes, [x], [z], opset=17, ir_version=9)
    w_wide = gs.Variable("w_float32", np.float32, [8, 8])
    y_low, y_wide = gs.Variable("y_bf16", BFLOAT16, ["n", 8]), gs.Variable("y_float32", np.float32, ["n", 8])
    nodes = [
        gs.Node("Cast", attrs={"to": FLOAT}, inputs=[w], outputs=[w_wide]),
        gs.Node("MatMul", inputs=[x, w_wide], outputs=[y]),
        gs.Node("Cast", attrs={"to": BFLOAT16}, inputs=[y], outputs=[y_low]),
        gs.Node("Cast", attrs={"to": FLOAT}, inputs=[y_low], outputs=[y_wide]),
        gs.Node("Relu", inputs=[y_wide], outputs=[z]),
    ]
    return gs.Graph(nodes, [x], [z], opset=17, ir_version=9)


def feeds(count: int, rows: int = 3) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    generator = np.random.default_rng(1)
    for i in range(count):
        yield str(i), {"x": generator.standard_normal((rows, 8)).astype(np.float32)}


def collect(form: str, samples: Iterator | None = None) -> dict[str, LayerStatistics]:
    graphs = build("float"), build(form)
    matches, _ = match_tensors(*graphs)
    statistics = SideBySide(*graphs, matches).collect(matches, samples or feeds(4))
    return {one.match.name: one for one in statistics}


def test_pairs_of_casts_layer_by_layer() -> None:
    found = collect("casts")
    x = np.concatenate([feed["x"] for _, feed in feeds(4)])
    y, y_unrounded = x @ W, x @ bf16(W)
    wanted = {
        "x": metrics.sqnr(x, x),
        "w": metrics.sqnr(W, bf16(W)),
        "y": metrics.sqnr(np.maximum(y, 0), np.maximum(bf16(y_unrounded), 0)),  # as the Relu leaves it
        "z": metrics.sqnr(np.maximum(y, 0), np.maximum(bf16(y_unrounded), 0)),
    }
    got = {name: one.total.sqnr() for name, one in found.items()}
    assert got == pytest.approx(wanted, abs=0.05)  # float32 sums in another order can round differently
    left = np.maximum(y_unrounded, 0)
    assert found["y"].own.sqnr() == pytest.approx(metrics.sqnr(left, bf16(left)), abs=0.05)
    assert found["z"].own.count == 0 and found["w"].own.count == 0


def test_true_bfloat16_layer_by_layer() -> None:
    found = collect("bf16")
    x = np.concatenate([feed["x"] for _, feed in feeds(4)])
    wanted = metrics.sqnr(np.maximum(x @ W, 0), np.maximum(bf16(bf16(x) @ bf16(W)), 0))
    assert found["y"].total.sqnr() == pytest.approx(wanted, abs=0.05)
    assert found["y"].match.format == found["z"].match.format == "bfloat16"


def test_bfloat16_inputs_and_outputs() -> None:
    """They are widened to run, under other names."""
    found = collect("bf16 ends")
    x = np.concatenate([feed["x"] for _, feed in feeds(4)])
    wanted = metrics.sqnr(np.maximum(x @ W, 0), np.maximum(bf16(bf16(x) @ bf16(W)), 0))
    assert found["z"].total.sqnr() == pytest.approx(wanted, abs=0.05)
    assert found["x"].total.count == x.size


def test_range_and_count() -> None:
    found = collect("casts")
    x = np.concatenate([feed["x"] for _, feed in feeds(4)])
    assert (found["x"].low, found["x"].high) == (x.min(), x.max())
    assert found["x"].total.count == x.size and found["w"].total.count == W.size


def test_weights_are_looked_at_once() -> None:
    assert collect("casts", feeds(1))["w"].total == collect("casts", feeds(5))["w"].total


def test_memory_does_not_grow_with_the_samples() -> None:
    graphs = build("float"), build("casts")
    matches, _ = match_tensors(*graphs)
    both = SideBySide(*graphs, matches)
    both.collect(matches, feeds(2, rows=20_000))
    peaks = []
    for count in (3, 30):
        tracemalloc.start()
        both.collect(matches, feeds(count, rows=20_000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_shapes_that_differ_are_told() -> None:
    one = LayerStatistics(match_tensors(build("float"), build("float"))[0][0])
    one.add(np.zeros((2, 3)), np.zeros((3, 2)), None)
    assert one.mismatch == "shape [2, 3] in the float model, [3, 2] in the other" and one.total.count == 0


def test_histogram_counts_every_value() -> None:
    x = RNG.standard_normal(1000)
    y = np.rint(x * 8) / 8
    histogram = GridHistogram(float(x.min()), float(x.max()))
    histogram.add(x[:500], y[:500])
    histogram.add(x[500:], y[500:])
    assert histogram.original.sum() == histogram.rounded.sum() == 1000
    assert np.array_equal(histogram.original, np.histogram(x, histogram.edges)[0])


def test_close_look_shows_neighbours_on_the_grid() -> None:
    x = RNG.standard_normal(5000)
    y = np.rint(x * 16) / 16
    histogram = GridHistogram(-4, 4)
    histogram.add(x, y)
    grid = np.array(sorted(histogram.zoom_grid))
    assert 15 <= grid.size <= 22 and np.all(np.diff(grid) == 1 / 16)
    edges = histogram.zoom_edges
    assert edges is not None
    assert sum(histogram.zoom_grid.values()) == np.count_nonzero((y >= edges[0]) & (y <= edges[-1]))
    assert np.array_equal(histogram.zoom_original, np.histogram(x, edges)[0])


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [2.5], [-1.0, -1.0, -2.0], [np.nan, np.inf, 1.0]])
def test_histograms_of_odd_arrays(values: list[float]) -> None:
    array = np.array(values)
    histogram = GridHistogram(1.0, 1.0)
    histogram.add(array, array)
    assert histogram.original.sum() == np.isfinite(array).sum()


@pytest.mark.parametrize("value", (3e38, -3.4e38, 1e30, 1e-42, 0.0, 65504.0))
def test_the_histogram_of_one_number_has_a_width(value: float) -> None:
    array = np.full((3, 4), value, np.float32)
    histogram = GridHistogram(float(array.min()), float(array.max()))
    histogram.add(array, array)
    assert histogram.zoom_edges is not None
    for edges in (histogram.edges, histogram.zoom_edges):
        assert (np.diff(edges) > 0).all()
    assert histogram.original.sum() == histogram.zoom_original.sum() == array.size


@pytest.mark.parametrize("value", (3e38, 1e30, 1e7))
def test_a_look_at_one_large_number_tells_the_next_of_float32_apart(value: float) -> None:
    number = np.float32(value)
    pair = np.array([number, np.nextafter(number, np.float32(0))])
    for edges in (GridHistogram(float(number), float(number)).edges, _zoomed(pair[:1])):
        assert np.histogram(pair, edges)[0].max() == 1


def _zoomed(array: np.ndarray) -> np.ndarray:
    histogram = GridHistogram(-1.0, 1.0)
    histogram.add(array, array)
    assert histogram.zoom_edges is not None
    return histogram.zoom_edges


def test_dense_grids_take_bounded_memory() -> None:
    histogram = GridHistogram(0, 1)
    histogram.add(np.zeros(2), np.array([0.2, 0.8]))
    histogram.add(RNG.random(10_000), RNG.random(10_000))
    assert len(histogram.zoom_grid) <= 96
