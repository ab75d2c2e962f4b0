"""Pools between integers. Oracle: ONNX Runtime with its own optimization, which loads and runs the result."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.runtime_workarounds import leave_out_pool_attributes
from transforms.scheme import Scheme
from transforms.scheme.apply_target import scheme_of
from transforms.scheme.sources import preset
from transforms.scheme.targets import target

CUT = "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, count_include_pad = 1"


def pooled(pool: str, *, before: str = "b = Relu(a)") -> onnx.ModelProto:
    text = f"""(float[1,1,8,8] x) => (float[A,B,C,D] y) <float[1,2,1,1] k = {{0.5, 2}}> {{ a = Conv(x, kernel)
        {before} p = AveragePool <{pool}> (b) y = Conv(p, k) }}"""
    return corpus.parse(text, opset=19)


def holds(model: onnx.ModelProto, scheme: Scheme) -> None:
    """The quantized model makes the same numbers in an ordinary session, but for its steps."""
    feed, graph = corpus.feeds(model), model_io.load(model)
    quantize_graph(graph, scheme, CalibrationData([feed]))
    found, expected = (open_model(g).run(feed)["y"] for g in (graph, model_io.load(model)))
    few = 0.05 * np.abs(expected).max()
    assert np.abs(found - expected).max() < few, "a few steps of 1/127 of the largest"
    assert leave_out_pool_attributes(graph) == 0


@pytest.mark.parametrize(
    "pool",
    (
        "kernel_shape = [2, 2], dilations = [1, 1]",
        "kernel_shape = [2, 2], dilations = [2, 2]",
        CUT,
        f'{CUT}, auto_pad = "VALID"',
        f'{CUT}, auto_pad = "SAME_LOWER"',
        f"{CUT}, pads = [1, 1, 1, 1]",
        f"{CUT}, pads = [0, 1, 1, 0]",
    ),
)
@pytest.mark.parametrize("config", ("A8W8", "XINT8", "U8S8", "A16W8"))
def test_a_pool_between_layers_runs(config: str, pool: str) -> None:
    holds(pooled(pool), preset(config))


@pytest.mark.parametrize("pool", ("kernel_shape = [2, 2], dilations = [2, 2]", f"{CUT}, pads = [1, 1, 1, 1]"))
@pytest.mark.parametrize("before", ("b = Relu(a)", "c = Relu(a) b = Transpose <perm = [0, 1, 3, 2]> (c)"))
def test_a_pool_reads_floats_of_layers_that_make_integers_for_all_others(pool: str, before: str) -> None:
    holds(pooled(pool, before=before), scheme_of(target("ort-cpu")))
    holds(pooled(pool, before=before), preset("U8S8").with_(quantize_all_op_types=True))


@pytest.mark.parametrize(
    ("pool", "left"),
    (
        ("kernel_shape = [2, 2], dilations = [1, 2]", {"kernel_shape", "dilations"}),
        ("kernel_shape = [2, 2], count_include_pad = 1", {"kernel_shape", "count_include_pad"}),
        ("kernel_shape = [2, 2], ceil_mode = 1", {"kernel_shape", "ceil_mode"}),
        (CUT, {"kernel_shape", "strides", "ceil_mode"}),
        (f"{CUT}, pads = [0, 0, 0, 0]", {"kernel_shape", "strides", "ceil_mode", "pads"}),
        (
            f"{CUT}, pads = [1, 0, 0, 0]",
            {"kernel_shape", "strides", "ceil_mode", "pads", "count_include_pad"},
        ),
    ),
)
def test_what_says_something_stays(pool: str, left: set[str]) -> None:
    text = f"(float[1,1,8,8] x) => (float[A,B,C,D] y) {{ y = AveragePool <{pool}> (x) }}"
    model = corpus.parse(text, opset=19)
    graph, feed = model_io.load(model), corpus.feeds(model)
    before = open_model(graph).run(feed)["y"]
    leave_out_pool_attributes(graph)
    assert set(next(walk.nodes(graph)).attrs) == left
    np.testing.assert_array_equal(open_model(graph).run(feed)["y"], before)
