"""Oracle: the nodes listed here, by the tensor that they make; the float model."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.plan.exact_steps import RULES, exact_steps
from transforms.run.run_model import open_model

FORMS = {
    "an oscillator": ("f = Mul(x, rate) c = CumSum(f, axis) y = Sin(c)", "fcy"),
    "harmonics": ("c = CumSum(x, axis) h = Mul(c, row) m = Mod <fmod = 1> (h, turn) y = Cos(m)", "chmy"),
    "frequencies of a net": (
        "d = MatMul(x, w) r = Relu(d) f = Mul(r, rate) c = CumSum(f, axis) y = Sin(c)",
        "fcy",
    ),
    "no sum": ("f = Mul(x, rate) y = Sin(f)", ""),
    "no angle": ("f = Mul(x, rate) c = CumSum(f, axis) y = Tanh(c)", ""),
    "a layer between": ("c = CumSum(x, axis) d = MatMul(c, w) y = Sin(d)", ""),
}
HELD = {
    "w": (16, 16),
    "rate": np.array(0.1, np.float32),
    "row": np.arange(1, 17, dtype=np.float32),
    "turn": np.array(6.2831855, np.float32),
    "axis": np.array(0),
}


def _graph(form: str, count: int = 3) -> plans.gs.Graph:
    text = f"(float[{count},16] x) => (float[{count},16] y) {{ {form} }}"
    return plans.graph(text, {name: held for name, held in HELD.items() if name in text})


@pytest.mark.parametrize("name", FORMS)
def test_sums_on_the_way_to_an_angle(name: str) -> None:
    form, expected = FORMS[name]
    graph = _graph(form)
    assert plans.made_by(graph, exact_steps(graph, [RULES["summed phases"]])) == set(expected)


def test_a_tone_keeps_its_phase() -> None:
    """After 2,000 samples the phase is some 100 in radians, where bfloat16 has steps of 0.5.

    What is left is the rounding of the result, 2 ** -9 of 1 at most.
    """
    graph = _graph("f = Mul(x, rate) c = CumSum(f, axis) y = Sin(c)", 2000)
    feed = {"x": np.random.default_rng(0).uniform(0.3, 0.7, (2000, 16)).astype(np.float32)}
    wanted = open_model(graph).run(feed)["y"]
    convert_bf16(graph, Bf16Options(format="with_cast"))
    np.testing.assert_allclose(open_model(graph).run(feed)["y"], wanted, rtol=0, atol=2**-9)
