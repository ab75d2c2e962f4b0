"""Pools between integers. Oracle: ONNX Runtime with its own optimization, which loads and runs the result."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.leave_out_dilations import leave_out_dilations
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.scheme.sources import preset


@pytest.mark.parametrize("dilations", ([1, 1], [2, 2]))
@pytest.mark.parametrize("config", ("A8W8", "XINT8", "U8S8", "A16W8"))
def test_a_pool_with_dilations_between_layers_loads(config: str, dilations: list[int]) -> None:
    model = corpus.parse(
        f"""(float[1,1,9,9] x) => (float[A,B,C,D] y) <float[1,2,1,1] k = {{0.5, 2}}> {{ a = Conv(x, kernel)
        p = AveragePool <kernel_shape = [2, 2], dilations = {dilations}> (a) y = Conv(p, k) }}""",
        opset=19,
    )
    feed = corpus.feeds(model)
    graph = model_io.load(model)
    quantize_graph(graph, preset(config), CalibrationData([feed]))
    found, expected = (open_model(g).run(feed)["y"] for g in (graph, model_io.load(model)))
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max(), (
        "a few steps of 1/127 of the largest"
    )
    assert leave_out_dilations(graph) == 0


def test_dilations_that_say_something_stay() -> None:
    text = """(float[1,1,9,9] x) => (float[A,B,C,D] y) {
        y = AveragePool <kernel_shape = [2, 2], dilations = [1, 2]> (x) }"""
    graph = model_io.load(corpus.parse(text, opset=19))
    assert leave_out_dilations(graph) == 0
    assert next(walk.nodes(graph)).attrs["dilations"] == [1, 2]
