"""Oracle: the nodes listed here, by the tensor that they make; roots and ratios of the float model."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.exact_steps import RULES, exact_steps
from transforms.run.run_model import open_model
from transforms.scheme import preset

ENDS = """(float[2,64] x, float[2,64] z) => (float[A,B] y)
    <float two = {{2.0}}, float four = {{4.0}}, float e = {{1e-5}},
     int64[1] a = {{1}}, int64 one = {{1}}> {{ {} }}"""
MOMENTS = """m = ReduceMean(x, a) q = Mul(x, x) n = ReduceMean(q, a) s = Pow(m, two) d = Sub(n, s)
    c = Add(d, e) y = Sqrt(c)"""
QUOTIENT = MOMENTS.removesuffix(" y = Sqrt(c)")
FORMS = {
    "discriminant": ("b = Mul(x, x) p = Mul(x, z) q = Mul(p, four) d = Sub(b, q) y = Sqrt(d)", "bpqdy"),
    "moments": (MOMENTS, "mqnsdcy"),
    "bounded": ("b = Mul(x, x) d = Sub(b, z) c = Relu(d) y = Sqrt(c)", "bdcy"),
    "no product": ("d = Sub(x, z) y = Sqrt(d)", ""),
    "no difference": ("b = Mul(x, x) y = Sqrt(b)", ""),
    "no root": ("b = Mul(x, x) y = Sub(b, z)", ""),
    "divisor": (f"{QUOTIENT} t = Tanh(x) y = Div(t, c)", "mqnsdcy"),
    "quotient": (
        f"{QUOTIENT} p = Mul(x, z) o = ReduceMean(p, a) k = Mul(m, z) l = Sub(o, k) y = Div(l, c)",
        "mqnsdcpokly",
    ),
    "determinant": ("p = Mul(x, z) q = Mul(z, z) d = Sub(p, q) y = Reciprocal(d)", "pqdy"),
    "bounded divisor": ("p = Mul(x, z) q = Mul(z, z) d = Sub(p, q) c = Clip(d, e) y = Div(x, c)", "pqdcy"),
    "difference of windows": (
        "p = Mul(x, x) r = CumSum(p, one) q = Mul(z, z) d = Sub(r, q) y = Div(x, d)",
        "prqdy",
    ),
    "areas": ("p = Mul(x, x) q = Mul(z, z) b = Mul(x, z) s = Add(p, q) d = Sub(s, b) y = Div(b, d)", ""),
    "scaled": ("p = Mul(x, two) q = Mul(z, four) d = Sub(p, q) y = Div(x, d)", ""),
    "one product": ("p = Mul(x, z) d = Sub(four, p) y = Div(x, d)", ""),
    "dividend": ("p = Mul(x, z) q = Mul(z, z) d = Sub(p, q) y = Div(d, x)", ""),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_below_a_root(name: str) -> None:
    text, expected = FORMS[name]
    graph = plans.loose_graph(ENDS.format(text))
    found = exact_steps(graph, [RULES["differences of products"]])
    assert plans.made_by(graph, found) == set(expected)


@pytest.mark.parametrize("format", ("with_cast", "simulate_bf16"))
def test_deviations_of_numbers_far_from_zero_are_numbers(format: str) -> None:
    """By rounded moments they were the roots of numbers below zero. Inputs here are numbers of bfloat16."""
    graph = plans.loose_graph(ENDS.format(MOMENTS))
    x = (96 + np.random.default_rng(0).integers(-4, 5, (2, 64)) / 2).astype(np.float32)
    wanted = open_model(graph).run({"x": x, "z": x})["y"]
    convert_bf16(graph, Bf16Options(format=format))
    np.testing.assert_allclose(open_model(graph).run({"x": x, "z": x})["y"], wanted, rtol=2**-8)


@pytest.mark.parametrize("format", ("BF16", "FP16"))
def test_slopes_of_windows_far_from_zero(format: str) -> None:
    """A guided filter divides covariances by variances, each the mean of products less a product of means.

    Sums and ratios of numbers of float32 are left, and the rounding of the slopes.
    """
    graph = plans.graph(
        """(float[1,1,8,8] x, float[1,1,8,8] z) => (float[1,1,6,6] y) <float e = {1e-3}> {
            m = AveragePool <kernel_shape = [3, 3]> (x) n = AveragePool <kernel_shape = [3, 3]> (z)
            p = Mul(x, z) q = Mul(x, x)
            o = AveragePool <kernel_shape = [3, 3]> (p) r = AveragePool <kernel_shape = [3, 3]> (q)
            s = Mul(m, n) t = Mul(m, m) c = Sub(o, s) v = Sub(r, t) w = Add(v, e) y = Div(c, w) }"""
    )
    random = np.random.default_rng(0)
    x = (24 + random.integers(-4, 5, (1, 1, 8, 8)) / 8).astype(np.float32)
    feed = {"x": x, "z": x - random.integers(-1, 2, (1, 1, 8, 8)).astype(np.float32) / 8}
    wanted = open_model(graph).run(feed)["y"]
    quantize_graph(graph, preset(format))
    np.testing.assert_allclose(open_model(graph).run(feed)["y"], wanted, rtol=2**-8)
