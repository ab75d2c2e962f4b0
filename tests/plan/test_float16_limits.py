"""Oracle: the nodes listed here, by the tensor that they make; the float model's outputs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.float16_range import float16_limits
from transforms.run.run_model import open_model
from transforms.scheme import preset

ENDS = """(float[2,8] x) => (float[A,B] y)
    <float e = {{1e-9}}, float big = {{1e6}}, float mask = {{-1e9}}, float one = {{1.0}}, int64[1] a = {{1}},
     float[1] tiny = {{1e-6}}, float[8] v> {{ {} }}"""
FORMS = {
    "added": ("s = ReduceSum(x, a) c = Add(s, e) y = Div(x, c)", "scy"),
    "floor": ("n = ReduceL2(x, a) c = Clip(n, e) u = Expand(c, shape) y = Div(x, u)", "ncuy"),
    "logarithm": ("p = Softmax(x) c = Add(p, e) y = Log(c)", "pcy"),
    "root": ("p = Abs(x) c = Max(p, e) r = Sqrt(c) y = Reciprocal(r)", "pcry"),
    "no end": ("p = Abs(x) y = Add(p, e)", ""),
    "numerator": ("c = Add(x, e) y = Div(c, one)", ""),
    "factor": ("y = Mul(x, tiny)", "y"),
    "large divisor": ("y = Div(x, big)", "y"),
    "mask": ("y = Add(x, mask)", ""),
    "variances": ("y = BatchNormalization(x, v, v, v, v)", "y"),
}
WEIGHTS: plans.Weights = {
    "v": np.array([1, 2.25e10, 1, 1, 4, 1, 9, 1], np.float32),
    "shape": np.array([2, 8], np.int64),
}


@pytest.mark.parametrize("name", FORMS)
def test_nodes_with_constants_that_float16_does_not_have(name: str) -> None:
    text, expected = FORMS[name]
    graph = plans.loose_graph(ENDS.format(text), WEIGHTS)
    found = float16_limits(graph)
    assert plans.made_by(graph, found) == set(expected)


@pytest.mark.parametrize("name", ("added", "floor", "logarithm"))
def test_rows_of_zeros_stay_numbers(name: str) -> None:
    """They were infinite or no numbers, without a word. Each number is rounded twice on its way at most."""
    graph = plans.loose_graph(ENDS.format(FORMS[name][0]), WEIGHTS)
    x = np.abs(np.random.default_rng(0).standard_normal((2, 8))).astype(np.float32) * 12
    x[1] = 0
    wanted = open_model(graph).run({"x": x})["y"]
    quantize_graph(graph, preset("FP16"))
    found = open_model(graph).run({"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2 * 2**-11 * np.abs(x).max())
