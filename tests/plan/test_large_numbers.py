"""Oracle: the nodes listed here, by the tensor that they make; the float model's outputs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.float16_range import large_numbers
from transforms.run.run_model import open_model
from transforms.scheme import preset

ENDS = """(float[4,8] x, float[4,8] z) => (float[A,B] y)
    <float k = {{12000.0}}, float c = {{180000.0}}, float s = {{80000.0}}, float one = {{1.0}},
     float much = {{-1e9}}, int64[2] turned = {{8, 4}}> {{ {} }}"""
PRICE = "h = Tanh(x) g = MatMul(h, w) m = Mul(g, k) y = Add(m, c)"
FORMS = {
    "price": (PRICE, "my"),
    "bias": ("h = Tanh(x) y = Gemm(h, w, b)", "y"),
    "prices": (f"{PRICE[:-13]} a = Add(m, c) r = Reshape(a, turned) y = Relu(r)", "mary"),
    "mean and deviation": ("t = Sub(x, c) q = Div(t, s) h = MatMul(q, w) y = Tanh(h)", "tq"),
    "large deviation": ("t = Sub(x, k) q = Div(t, s) h = MatMul(q, w) y = Tanh(h)", "tq"),
    "logarithm": ("i = Add(x, one) l = Log(i) y = MatMul(l, w)", "il"),
    "logarithm of an offset": ("h = MatMul(x, w) a = Add(h, c) l = Log(a) y = MatMul(l, w)", "al"),
    "logarithm of a layer": ("h = MatMul(x, w) r = Abs(h) i = Add(r, one) y = Log(i)", ""),
    "no way out": ("a = Add(x, c) y = Softmax(a)", ""),
    "a number beside": ("a = Mul(x, c) h = MatMul(x, w) y = Add(a, h)", ""),
    "mask": ("a = Add(x, much) y = Relu(a)", ""),
    "stored mask": ("a = Add(x, mask) y = Identity(a)", ""),
    "made mask": ("n = Sub(one, z) f = Mul(n, much) a = Add(x, f) y = Softmax(a)", ""),
    "within": ("a = Mul(x, k) y = Add(a, one)", ""),
}
WEIGHTS: plans.Weights = {
    "w": (8, 8),
    "b": np.linspace(0, 2e5, 8, dtype=np.float32),
    "mask": np.triu(np.full((4, 8), -1e6, np.float32)),
}


@pytest.mark.parametrize("name", FORMS)
def test_numbers_beyond_float16(name: str) -> None:
    text, expected = FORMS[name]
    graph = plans.loose_graph(ENDS.format(text), WEIGHTS)
    found = large_numbers(graph)
    assert plans.made_by(graph, found) == set(expected)


@pytest.mark.parametrize("name", ("price", "bias", "mean and deviation", "logarithm"))
def test_they_are_no_largest_float16(name: str) -> None:
    """All were 65504. Operands of the layer are rounded, and its outcome: 2 ** -11 of each, of 8 sums."""
    graph = plans.loose_graph(ENDS.format(FORMS[name][0]), WEIGHTS)
    x = np.random.default_rng(0).uniform(7e4, 3e5, (4, 8)).astype(np.float32)
    wanted = open_model(graph).run({"x": x, "z": x})["y"]
    quantize_graph(graph, preset("FP16"))
    found = open_model(graph).run({"x": x, "z": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=3 * 2**-11, atol=3 * 2**-11 * 8)
