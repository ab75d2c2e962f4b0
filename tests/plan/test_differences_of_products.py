"""Oracle: the nodes listed here, by the tensor that they make; a root that the float model takes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.pipelines.convert_bf16 import Bf16Options, convert_bf16
from transforms.plan.differences_of_products import differences_of_products
from transforms.run.run_model import open_model

ENDS = """(float[2,64] x, float[2,64] z) => (float[A,B] y)
    <float two = {{2.0}}, float four = {{4.0}}, float e = {{1e-5}}, int64[1] a = {{1}}> {{ {} }}"""
MOMENTS = """m = ReduceMean(x, a) q = Mul(x, x) n = ReduceMean(q, a) s = Pow(m, two) d = Sub(n, s)
    c = Add(d, e) y = Sqrt(c)"""
FORMS = {
    "discriminant": ("b = Mul(x, x) p = Mul(x, z) q = Mul(p, four) d = Sub(b, q) y = Sqrt(d)", "bpqdy"),
    "moments": (MOMENTS, "mqnsdcy"),
    "bounded": ("b = Mul(x, x) d = Sub(b, z) c = Relu(d) y = Sqrt(c)", "bdcy"),
    "no product": ("d = Sub(x, z) y = Sqrt(d)", ""),
    "no difference": ("b = Mul(x, x) y = Sqrt(b)", ""),
    "no root": ("b = Mul(x, x) y = Sub(b, z)", ""),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_below_a_root(name: str) -> None:
    text, expected = FORMS[name]
    graph = plans.loose_graph(ENDS.format(text))
    found = differences_of_products(graph)
    assert plans.made_by(graph, found) == set(expected)


@pytest.mark.parametrize("format", ("with_cast", "simulate_bf16"))
def test_deviations_of_numbers_far_from_zero_are_numbers(format: str) -> None:
    """By rounded moments they were the roots of numbers below zero. Inputs here are numbers of bfloat16."""
    graph = plans.loose_graph(ENDS.format(MOMENTS))
    x = (96 + np.random.default_rng(0).integers(-4, 5, (2, 64)) / 2).astype(np.float32)
    wanted = open_model(graph).run({"x": x, "z": x})["y"]
    convert_bf16(graph, Bf16Options(format=format))
    np.testing.assert_allclose(open_model(graph).run({"x": x, "z": x})["y"], wanted, rtol=2**-8)
