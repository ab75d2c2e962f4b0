"""Oracle: the nodes listed here, by the tensor that they make; the float model's outputs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.float16_range import roots_of_squares
from transforms.run.run_model import open_model
from transforms.scheme import preset

ENDS = """(float[2, 16] x) => (float[2, 16] y)
    <float two = {{2}}, float half = {{-0.5}}, float e = {{1e-6}}, int64[1] a = {{1}}> {{ {} }}"""

FORMS = {
    "Pow": ("s = Pow(x, two) m = ReduceMean(s, a) c = Add(m, e) r = Sqrt(c) y = Div(x, r)", "smcr"),
    "Mul": ("s = Mul(x, x) m = ReduceSum(s, a) r = Sqrt(m) y = Div(x, r)", "smr"),
    "a power": ("s = ReduceSumSquare(x, a) c = Add(s, e) r = Pow(c, half) y = Mul(x, r)", "scr"),
    "magnitudes": ("i = Neg(x) s = Mul(x, x) t = Mul(i, i) c = Add(s, t) y = Sqrt(c)", "stcy"),
    "log of powers": ("s = Mul(x, x) f = MatMul(s, w) c = Add(f, e) y = Log(c)", "sfcy"),
    "no square": ("s = Mul(x, two) c = Exp(s) y = Sqrt(c)", ""),
    "a product of two": ("i = Neg(x) s = Mul(x, i) y = Sqrt(s)", ""),
    "no root": ("s = Mul(x, x) m = ReduceSum(s, a) y = Div(x, m)", ""),
    "constants": ("r = Sqrt(two) y = Div(x, r)", ""),
}


@pytest.mark.parametrize("name", FORMS)
def test_squares_their_sums_and_roots(name: str) -> None:
    text, expected = FORMS[name]
    graph = plans.graph(ENDS.format(text), {"w": (16, 16)} if "w)" in text else None)
    found = roots_of_squares(graph)
    assert plans.made_by(graph, found) == set(expected)


@pytest.mark.parametrize("size", (1e-4, 1.0, 3e3))
def test_norms_of_any_size_in_float16(size: float) -> None:
    """Rows over their root mean square, each rounded once or twice: 2 ** -11 of the largest, four times."""
    text = ENDS.format(FORMS["Pow"][0]).replace("1e-6", "0")
    graph = plans.graph(text)
    x = (size * np.random.default_rng(0).standard_normal((2, 16))).astype(np.float32)
    wanted = open_model(graph).run({"x": x})["y"]
    quantize_graph(graph, preset("FP16"))
    found = open_model(graph).run({"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=4 * 2**-11 * np.abs(wanted).max())
