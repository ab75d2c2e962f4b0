"""Oracle: the nodes listed here, by the tensor that they make; the float model's outputs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.exact_steps import RULES, exact_steps
from transforms.run.run_model import open_model
from transforms.scheme import preset

ENDS = """(float[4,2] x, int64[4,2] n) => (float[A,B] y) <float one = {{1.0}}, int64[1] a = {{0}}> {{ {} }}"""
STORED = "d = Sub(x, m) q = Div(d, s) y = Tanh(q)"
FORMS = {
    "mean and deviation": (STORED, "dq"),
    "inverse deviation": ("d = Add(x, o) q = Mul(d, i) y = Tanh(q)", "dq"),
    "moved": ("u = Unsqueeze(x, a) d = Sub(u, m) q = Div(d, s) y = Tanh(q)", "udq"),
    "integers": ("f = Cast <to = 1> (n) d = Sub(f, m) q = Div(d, s) y = Tanh(q)", "fdq"),
    "two readers": ("d = Sub(x, m) q = Div(d, s) r = Relu(d) y = Add(q, r)", "dq"),
    "pixels": ("d = Sub(x, p) q = Div(d, v) y = Tanh(q)", ""),
    "no deviation": ("d = Sub(x, m) y = Tanh(d)", ""),
    "dividend": ("d = Sub(x, m) q = Div(one, d) y = Tanh(q)", ""),
    "what a net makes": ("h = Sigmoid(x) d = Sub(h, m) y = Div(d, s)", ""),
    "mask": ("d = Sub(one, x) q = Mul(d, l) y = Tanh(q)", ""),
    "mask less one": ("f = Cast <to = 1> (n) d = Sub(f, one) q = Mul(d, l) y = Tanh(q)", ""),
    "no constant": ("h = Neg(x) d = Sub(x, h) y = Div(d, s)", ""),
}
WEIGHTS: plans.Weights = {
    "m": np.array([35.6, 119.6], np.float32),
    "s": np.array([20, 2], np.float32),
    "o": np.array([35.6, -119.6], np.float32),
    "i": np.array([0.05, 0.5], np.float32),
    "p": np.array([123.7, 103.5], np.float32),
    "v": np.array([58.4, 57.4], np.float32),
    "l": np.array([-10000, -3.4e38], np.float32),
}


@pytest.mark.parametrize("name", FORMS)
def test_means_far_beyond_deviations(name: str) -> None:
    text, expected = FORMS[name]
    graph = plans.loose_graph(ENDS.format(text), WEIGHTS)
    found = exact_steps(graph, [RULES["standardised inputs"]])
    assert plans.made_by(graph, found) == set(expected)


@pytest.mark.parametrize("format", ("BF16", "FP16"))
def test_ratios_are_rounded_by_their_own_size(format: str) -> None:
    """By rounded inputs they were off by an eighth. Ratios up to 3 are rounded, and their Tanh."""
    graph = plans.loose_graph(ENDS.format(STORED), WEIGHTS)
    x = np.random.default_rng(0).normal([35.6, 119.6], [20, 2], (4, 2)).astype(np.float32)
    feed = {"x": x, "n": x.astype(np.int64)}
    wanted = open_model(graph).run(feed)["y"]
    quantize_graph(graph, preset(format))
    np.testing.assert_allclose(open_model(graph).run(feed)["y"], wanted, rtol=0, atol=4 * 2**-9)
