"""Oracle: the nodes listed here, by the tensor that they make; the float model."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.plan.exact_steps import RULES, exact_steps
from transforms.run.run_model import open_model

FORMS = {
    "once": ("d = MatMul(x, w) s = Add(x, d) y = Sub(s, x)", "sy"),
    "again and again": (
        "d = MatMul(x, w) s = Add(x, d) e = Tanh(s) t = Add(s, e) f = Sub(t, x) h = Sub(s, x) y = Add(f, h)",
        "stfh",
    ),
    "a stored grid": ("d = MatMul(x, w) s = Add(d, grid) y = Sub(s, grid)", "sy"),
    "another number": ("d = MatMul(x, w) s = Add(x, d) y = Sub(s, d2)", ""),
    "of the sum": ("d = MatMul(x, w) s = Add(x, d) y = Sub(x, s)", ""),
    "behind a product": ("d = MatMul(x, w) s = Add(x, d) m = Mul(s, d) y = Sub(m, x)", ""),
}
GRID = (np.arange(48, dtype=np.float32) * 7 + 800).reshape(3, 16)


def _text(name: str) -> str:
    return "(float[3,16] x) => (float[3,16] y) { " + FORMS[name][0].replace("d2", "grid") + " }"


def _weights(name: str) -> plans.Weights:
    return {"w": (16, 16), **({"grid": GRID} if "grid" in _text(name) else {})}


@pytest.mark.parametrize("name", FORMS)
def test_sums_and_what_is_taken_off(name: str) -> None:
    graph = plans.graph(_text(name), _weights(name))
    found = exact_steps(graph, [RULES["cancelled sums"]])
    assert plans.made_by(graph, found) == set(FORMS[name][1])


def test_moves_on_a_grid_are_rounded_by_their_own_size() -> None:
    """On a grid up to 1,129 bfloat16 has steps of 8, and the moves are 1 at most.

    Their arguments are sums of 16 products of rounded operands: 2 ** -8 of the sum of magnitudes, some 4.
    """
    graph = plans.graph(
        """(float[3,16] x, float[3,16] z) => (float[3,16] y) {
            m = MatMul(z, w) d = Tanh(m) s = Add(x, d) y = Sub(s, x) }""",
        {"w": (16, 16)},
    )
    feed = {"x": GRID, "z": np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)}
    wanted = open_model(graph).run(feed)["y"]
    convert_bf16(graph, Bf16Options(format="with_cast"))
    np.testing.assert_allclose(open_model(graph).run(feed)["y"], wanted, rtol=0, atol=4 * 2**-8)
