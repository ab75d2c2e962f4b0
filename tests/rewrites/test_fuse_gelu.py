"""Fusing GELUs.

Oracle: the formula in float64 (``math.erf``, ``math.tanh``); the original and the fused model must both lie
within a bound of float32 rounding around it.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.helpers import fusion
from transforms.convert_opset import convert_opset
from transforms.fuse_gelu import find_gelu, fuse_gelu

X = np.concatenate([np.linspace(-8, 8, 1601), [0.0, -0.0, 30, -30, 1e-20]])
X = X.astype(np.float32).reshape(1, 11, -1)
SHAPES = {"inputs": "float[B,T,N] x", "outputs": "float[B,T,N] y"}

WEIGHTS = {
    "half": np.float32(0.5),
    "one": np.float32(1),
    "ones": np.ones((1, 1, 1), np.float32),
    "two": np.float32(2),
    "three": np.float32(3),
    "root2": np.float32(math.sqrt(2)),
    "rroot2": np.float32(math.sqrt(0.5)),
    "cube": np.float32(0.044715),
    "k": np.float32(math.sqrt(2 / math.pi)),
    "k_cube": np.float32(math.sqrt(2 / math.pi) * 0.044715),
    "quick": np.float32(1.702),
    "off": np.float32(0.7071),
}

ERF = {
    "divided": "a = Div(x, root2) e = Erf(a) s = Add(e, one) p = Mul(x, s) y = Mul(p, half)",
    "multiplied": "a = Mul(rroot2, x) e = Erf(a) s = Add(ones, e) c = Mul(half, s) y = Mul(c, x)",
    "half first": "h = Mul(x, half) a = Div(x, root2) e = Erf(a) s = Add(e, one) y = Mul(h, s)",
    "distribution": "a = Mul(x, rroot2) e = Erf(a) f = Mul(e, half) c = Add(f, half) y = Mul(x, c)",
    "divided by two": "a = Mul(x, rroot2) e = Erf(a) s = Add(e, one) p = Mul(x, s) y = Div(p, two)",
    "multiplied out": "a = Div(x, root2) e = Erf(a) h = Mul(x, half) f = Mul(h, e) y = Add(h, f)",
    "negated twice": "a = Div(x, root2) n = Neg(a) g = Neg(n) i = Erf(g) s = Add(i, one) p = Mul(s, half) "
    "y = Mul(p, x)",
}
TANH = {
    "power": "q = Pow(x, three) c = Mul(q, cube) s = Add(x, c) a = Mul(s, k) t = Tanh(a) o = Add(t, one) "
    "p = Mul(x, o) y = Mul(half, p)",
    "products": "c = Mul(cube, x) d = Mul(x, c) f = Mul(x, d) s = Add(x, f) a = Mul(k, s) t = Tanh(a) "
    "o = Add(ones, t) h = Mul(half, o) y = Mul(x, h)",
    "factored": "q = Mul(x, x) c = Mul(q, cube) o = Add(c, one) l = Mul(x, k) a = Mul(l, o) t = Tanh(a) "
    "u = Add(t, one) h = Mul(x, half) y = Mul(h, u)",
    "distributed": "q = Pow(x, two) c = Mul(q, k_cube) o = Add(c, k) a = Mul(x, o) t = Tanh(a) "
    "f = Mul(t, half) u = Add(half, f) y = Mul(x, u)",
}
FORMS = {**{f"erf {name}": body for name, body in ERF.items()}, **{f"tanh {n}": b for n, b in TANH.items()}}


def model(body: str, opset: int = 20, **types: str) -> onnx.ModelProto:
    return fusion.parse(body, WEIGHTS, opset=opset, **{**SHAPES, **types})


def exact(x: NDArray, approximate: str) -> NDArray:
    """The formula, in float64."""
    wide = x.astype(np.float64)
    if approximate == "none":
        return wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
    return wide * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))


def rounding_bound(x: NDArray) -> NDArray:
    """The sum 1 + erf has an absolute error of u (its rounding) plus that of erf: the relative error of the
    argument, 6 u at most, times its sensitivity, |a f'(a)| < 1 for both functions, and the runtime's own
    approximation, below 4 u. Four more operations follow: |x| / 2 * (6 + 4 + 1) u + 4 u |y|, |y| <= |x|."""
    return 10 * 2.0**-24 * np.abs(x.astype(np.float64)) + 1e-45


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_one_node(form: str) -> None:
    original = model(FORMS[form])
    graph = fusion.load(original)
    approximate = "none" if form.startswith("erf") else "tanh"
    assert find_gelu(graph) == 1
    assert fuse_gelu(graph) == 1
    (node,) = graph.nodes
    assert (node.op, node.attrs) == ("Gelu", {"approximate": approximate})
    assert fuse_gelu(graph) == 0 == find_gelu(graph)
    for built in (original, fusion.export(graph)):
        (y,) = fusion.run(built, x=X)
        assert np.all(np.abs(y - exact(X, approximate)) <= rounding_bound(X))


OTHER_FORMS = {
    "sigmoid": "a = Mul(x, quick) s = Sigmoid(a) y = Mul(x, s)",
    "another argument": "a = Mul(x, off) e = Erf(a) s = Add(e, one) p = Mul(x, s) y = Mul(p, half)",
    "without half": "a = Div(x, root2) e = Erf(a) s = Add(e, one) y = Mul(x, s)",
    "erf alone": "a = Div(x, root2) y = Erf(a)",
    "minus one": "a = Div(x, root2) e = Erf(a) s = Sub(e, one) p = Mul(x, s) y = Mul(p, half)",
    "another factor": "a = Div(x, root2) e = Erf(a) s = Add(e, one) p = Mul(z, s) y = Mul(p, half)",
    "tanh alone": "t = Tanh(x) o = Add(t, one) p = Mul(x, o) y = Mul(half, p)",
    "a square for a cube": "q = Pow(x, two) c = Mul(q, cube) s = Add(x, c) a = Mul(s, k) t = Tanh(a) "
    "o = Add(t, one) p = Mul(x, o) y = Mul(half, p)",
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_other_formulas_stay(form: str) -> None:
    graph = fusion.load(model(OTHER_FORMS[form], inputs="float[B,T,N] x, float[B,T,N] z"))
    before = fusion.operators(graph)
    assert fuse_gelu(graph) == 0 == find_gelu(graph)
    assert fusion.operators(graph) == before


def test_constant_that_may_enlarge_the_result_is_not_a_number() -> None:
    weights = {
        **WEIGHTS,
        "half": np.full((2, 1, 1), 0.5, np.float32),
        "one": np.ones((1, 1, 1, 1), np.float32),
    }
    assert find_gelu(fusion.load(model(ERF["distribution"]))) == 1
    for form, shape in (("distribution", "?,?,?"), ("half first", "?,?,?,?")):
        built = fusion.parse(
            ERF[form], weights, opset=20, inputs=SHAPES["inputs"], outputs=f"float[{shape}] y"
        )
        assert fuse_gelu(fusion.load(built)) == 0


def test_old_opset_is_counted_but_not_changed(caplog: pytest.LogCaptureFixture) -> None:
    graph = fusion.load(model(ERF["divided"], 19))
    with caplog.at_level(logging.DEBUG, "transforms.fuse_gelu"):
        assert fuse_gelu(graph) == 0
    assert "needs opset 20, the graph has 19" in caplog.text
    assert find_gelu(graph) == 1
    convert_opset(graph, 20)
    assert fuse_gelu(graph) == 1


def test_results_that_are_used_elsewhere_stay() -> None:
    original = model(f"{ERF['divided']} other = Relu(s)", outputs="float[B,T,N] y, float[B,T,N] other")
    graph = fusion.load(original)
    assert fuse_gelu(graph) == 1
    assert fusion.operators(graph) == {"Div": 1, "Erf": 1, "Add": 1, "Relu": 1, "Gelu": 1}
    assert fuse_gelu(graph) == 0
    before, after = fusion.run(original, x=X), fusion.run(fusion.export(graph), x=X)
    np.testing.assert_array_equal(before[1], after[1])


def test_result_that_is_output_and_used() -> None:
    graph = fusion.load(model(f"{ERF['divided']} z = Relu(y)", outputs="float[B,T,N] y, float[B,T,N] z"))
    assert fuse_gelu(graph) == 1
    assert [node.op for node in graph.nodes] == ["Gelu", "Relu"]
    y, z = fusion.run(fusion.export(graph), x=X)
    np.testing.assert_array_equal(np.maximum(y, 0), z)


def test_intermediate_result_that_is_an_output_stays() -> None:
    graph = fusion.load(model(ERF["divided"], outputs="float[B,T,N] y, float[B,T,N] e"))
    assert fuse_gelu(graph) == 1
    assert fusion.operators(graph) == {"Div": 1, "Erf": 1, "Gelu": 1}
    assert fusion.run(fusion.export(graph), x=X)[1].shape == X.shape


def test_both_kinds_of_one_tensor() -> None:
    tanh = TANH["power"].replace("y = Mul(half, p)", "z = Mul(half, p2)").replace("p = Mul", "p2 = Mul")
    tanh = (
        tanh.replace("s = ", "s2 = ").replace("(s,", "(s2,").replace("a = ", "a2 = ").replace("(a)", "(a2)")
    )
    graph = fusion.load(model(f"{ERF['divided']} {tanh}", outputs="float[B,T,N] y, float[B,T,N] z"))
    assert fuse_gelu(graph) == 2
    assert [node.attrs["approximate"] for node in graph.nodes] == ["none", "tanh"]


def test_half_precision_constants_are_rounded() -> None:
    """sqrt(2) is 1.4141 in float16, off by more than 1e-6."""
    weights = {name: array.astype(np.float16) for name, array in WEIGHTS.items()}
    types = {"inputs": "float16[B,T,N] x", "outputs": "float16[B,T,N] y"}
    graph = fusion.load(fusion.parse(ERF["divided"], weights, opset=20, **types))
    assert fuse_gelu(graph) == 1
    assert graph.nodes[0].op == "Gelu"


def test_unknown_rank_and_empty_tensors() -> None:
    body = f"x = Reshape(flat, shape) {ERF['divided']}"
    types = {"inputs": "float[N] flat, int64[R] shape", "outputs": "float[?,?] y"}
    graph = fusion.load(fusion.parse(body, WEIGHTS, opset=20, **types))
    assert fuse_gelu(graph) == 1
    fused = fusion.export(graph)
    (y,) = fusion.run(fused, flat=np.zeros(0, np.float32), shape=np.array([0, 5]))
    assert y.shape == (0, 5)


def test_branches_with_captured_tensors() -> None:
    body = ERF["divided"].replace("y = ", "inner = ")
    branches = f"then_branch = a () => (float[B,T,N] inner) {{ {body} }}, "
    branches += "else_branch = b () => (float[B,T,N] same) { same = Identity(x) }"
    graph = fusion.load(model(f"y = If(c)<{branches}>", inputs="float[B,T,N] x, bool c"))
    assert fuse_gelu(graph) == 1
    assert [node.op for node in graph.nodes[0].attrs["then_branch"].nodes] == ["Gelu"]
    fused = fusion.export(graph)
    (y,) = fusion.run(fused, x=X, c=np.array(True))
    assert np.all(np.abs(y - exact(X, "none")) <= rounding_bound(X))
