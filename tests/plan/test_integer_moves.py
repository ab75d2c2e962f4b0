"""Oracle: ONNX Runtime 1.32 with optimization against without, in every form of AveragePool: those below."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import corpus, plans
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.run_model import open_model
from transforms.scheme import preset

WEIGHTS: plans.Weights = {"w": (3, 3, 1, 1), "v": (3, 3, 1, 1)}
CUT = "kernel_shape = [3, 3], ceil_mode = 1, count_include_pad = 1"


def places(pool: str, size: object = 8, before: str = "b = Relu(a)") -> set[str]:
    text = f"""(float[1,3,{size},{size}] x) => (float[A,B,C,D] y) {{ a = Conv(x, w) {before}
        p = AveragePool <{pool}> (b) y = Conv(p, v) }}"""
    return set(plans.reads(QuantizationPlan(plans.graph(text, WEIGHTS, opset=19), preset("A8W8"))))


FLOAT = {"a.0", "a.1", "y.0", "y.1", "=y"}


@pytest.mark.parametrize(
    "pool",
    (
        "kernel_shape = [2, 2], dilations = [1, 2]",
        f"{CUT}, pads = [1, 1, 1, 1], strides = [2, 2]",
        f"{CUT}, pads = [0, 0, 1, 1], strides = [1, 2]",
    ),
)
def test_what_an_ordinary_session_computes_wrongly_reads_floats(pool: str) -> None:
    size = 9 if "[0, 0, 1, 1]" in pool else 8
    moved = "c = Relu(a) b = MaxPool <kernel_shape = [1, 1]> (c)"
    assert places(pool, size) == places(pool, size, moved) == FLOAT


@pytest.mark.parametrize(
    ("pool", "size"),
    (
        ("kernel_shape = [2, 2], dilations = [1, 1]", 8),
        (f"{CUT}, pads = [1, 1, 1, 1]", "N"),  # windows one apart end with the pads
        (f"{CUT}, pads = [1, 1, 1, 1], strides = [2, 2]", 9),
        (f"{CUT}, strides = [2, 2]", "N"),
        (f'{CUT}, auto_pad = "SAME_UPPER", strides = [2, 2]', "N"),
        ("kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2], ceil_mode = 1", "N"),
        ("kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2], count_include_pad = 1", "N"),
    ),
)
def test_all_other_pools_read_integers(pool: str, size: object) -> None:
    assert places(pool, size) == FLOAT | {"p.0"}


def test_sizes_that_are_not_known_may_leave_windows_cut() -> None:
    assert places(f"{CUT}, pads = [1, 1, 1, 1], strides = [2, 2]", "N") == FLOAT


@pytest.mark.parametrize("size", (", half", ", , sizes"))
@pytest.mark.parametrize("before", ("b = Relu(a)", "b = Sigmoid(a)", "c = Sigmoid(a) b = Add(a, c)"))
def test_cubic_resizes_that_may_shrink_run_between_layers(size: str, before: str) -> None:
    text = f"""(float[1,1,8,8] x) => (float[A,B,C,D] y) <float[4] half = {{1, 1, 0.5, 0.5}},
        int64[4] sizes = {{1, 2, 11, 5}}, float[1,2,1,1] k = {{0.5, 2}}> {{
        a = Conv(x, kernel) {before} r = Resize <mode = "cubic"> (b, {size}) y = Conv(r, k) }}"""
    model = corpus.parse(text)
    feed, graph = corpus.feeds(model), model_io.load(model)
    quantize_graph(graph, preset("U8S8"), CalibrationData([feed]))
    found, expected = (open_model(g).run(feed)["y"] for g in (graph, model_io.load(model)))
    few = 0.05 * np.abs(expected).max()
    assert np.abs(found - expected).max() < few, "a few steps of 1/127 of the largest"


def test_cubic_resizes_that_grow_read_integers() -> None:
    text = """(float[1,3,8,8] x) => (float[A,B,C,D] y) <float[4] s = {1, 1, 2, 2}> {
        a = Conv(x, w) r = Resize <mode = "cubic"> (a, , s) y = Conv(r, v) }"""
    assert set(plans.reads(plans.plan(text, WEIGHTS))) == {"a.0", "a.1", "r.0", "y.0", "y.1", "=y"}
