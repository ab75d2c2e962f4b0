"""RMS normalisations. Oracle: x / sqrt(mean(x^2) + epsilon) * scale in float64, within a rounding bound."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import conversion, corpus
from transforms import model_io
from transforms.fuse_layernorm import find_layernorm
from transforms.fuse_rmsnorm import fuse_rmsnorm
from transforms.graph import walk

WIDTH, EPSILON = 8, 1e-3
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(0.3, 2, (2, 3, WIDTH)).astype(np.float32)
SCALE = RANDOM.normal(1, 0.3, WIDTH).astype(np.float32)

HEAD = f"""(float[B, T, {WIDTH}] x) => (float[B, T, {WIDTH}] y)
    <float eps = {{{EPSILON}}}, float two = {{2}}, float half = {{0.5}}, float one = {{1}},
     float down = {{-0.5}}, int64[1] last = {{-1}}, float part = {{{1 / WIDTH}}},
     float[{WIDTH}] scale = {{{", ".join(map(str, SCALE))}}}>"""
MEAN = "q = Pow(x, two) m = ReduceMean <keepdims = 1> (q, last) e = Add(m, eps)"
FORMS = {
    "pytorch": f"{MEAN} s = Sqrt(e) r = Div(one, s) n = Mul(x, r) y = Mul(scale, n)",
    "reciprocal": f"{MEAN} s = Sqrt(e) r = Reciprocal(s) n = Mul(r, x) y = Mul(n, scale)",
    "division": f"{MEAN} s = Sqrt(e) n = Div(x, s) y = Mul(n, scale)",
    "power": f"{MEAN} r = Pow(e, down) n = Mul(x, r) y = Mul(n, scale)",
    "root by power": f"{MEAN} s = Pow(e, half) n = Div(x, s) y = Mul(n, scale)",
    "scale first": f"{MEAN} s = Sqrt(e) r = Reciprocal(s) g = Mul(x, scale) y = Mul(g, r)",
    "sum": "q = Mul(x, x) t = ReduceSum <keepdims = 1> (q, last) m = Mul(t, part) e = Add(eps, m) "
    "s = Sqrt(e) n = Div(x, s) y = Mul(n, scale)",
}
OTHERS = {
    "no root": f"{MEAN} n = Div(x, e) y = Mul(n, scale)",
    "the mean": f"{MEAN.replace('Pow(x, two)', 'Neg(x)')} s = Sqrt(e) n = Div(x, s) y = Mul(n, scale)",
    "another dividend": f"{MEAN} s = Sqrt(e) z = Exp(x) n = Div(z, s) y = Mul(n, scale)",
}


def exact(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPSILON) * SCALE)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_one_node(form: str) -> None:
    original = corpus.parse(f"{HEAD} {{ {FORMS[form]} }}", opset=23, ir_version=10)
    graph = model_io.load(original)
    assert find_layernorm(graph) == 0
    count, fused = conversion.rewritten(graph, fuse_rmsnorm)
    assert (count, [node.op for node in graph.nodes]) == (1, ["RMSNormalization"])
    bound = (WIDTH + 8) * 2.0**-24 * np.abs(exact(X))
    for model in (original, fused):
        assert (np.abs(conversion.run(model, {"x": X})["y"] - exact(X)) <= bound).all()


@pytest.mark.parametrize("form", OTHERS)
def test_other_functions_stay(form: str) -> None:
    graph = model_io.load(corpus.parse(f"{HEAD} {{ {OTHERS[form]} }}", opset=23, ir_version=10))
    assert fuse_rmsnorm(graph) == 0


def test_a_computed_scale_stays_outside() -> None:
    body = f"{MEAN} s = Sqrt(e) n = Div(x, s) z = Exp(x) y = Mul(n, z)"
    original = corpus.parse(f"{HEAD} {{ {body} }}", opset=23, ir_version=10)
    graph = model_io.load(original)
    count, fused = conversion.rewritten(graph, fuse_rmsnorm)
    assert (count, [node.op for node in graph.nodes]) == (1, ["RMSNormalization", "Exp", "Mul"])
    before, after = (conversion.run(model, {"x": X})["y"] for model in (original, fused))
    np.testing.assert_allclose(after, before, rtol=(WIDTH + 8) * 2.0**-24)


def test_half_precision_that_is_computed_in_single() -> None:
    """Language models widen, normalise, narrow and scale; the node keeps float32 inside, too."""
    bits = ", ".join(map(str, SCALE.astype(np.float16).view(np.uint16)))
    text = HEAD.replace(f"float[B, T, {WIDTH}]", f"float16[B, T, {WIDTH}]")
    text = f"{text.partition(f'float[{WIDTH}] scale')[0]}float16[{WIDTH}] scale = {{{bits}}}>"
    body = f"""w = Cast <to = 1> (x) {MEAN.replace("Pow(x", "Pow(w")} s = Sqrt(e) n = Div(w, s)
        h = Cast <to = 10> (n) y = Mul(scale, h)"""
    original = corpus.parse(f"{text} {{ {body} }}", opset=23, ir_version=10)
    graph = model_io.load(original)
    count, fused = conversion.rewritten(graph, fuse_rmsnorm)
    assert (count, [node.op for node in graph.nodes]) == (1, ["RMSNormalization"])
    half = X.astype(np.float16)
    bound = 3 * 2.0**-11 * np.abs(exact(half)) + 2.0**-24  # scale, quotient and product are rounded
    for model in (original, fused):
        found = conversion.run(model, {"x": half})["y"].astype(np.float64)
        assert (np.abs(found - exact(half)) <= bound).all()


def test_statistics_that_are_used_elsewhere_stay() -> None:
    text = HEAD.replace(" y)", " y, float[B, T, 1] s)", 1)
    graph = model_io.load(corpus.parse(f"{text} {{ {FORMS['division']} }}", opset=23, ir_version=10))
    assert fuse_rmsnorm(graph) == 1
    assert [node.op for node in graph.nodes] == ["Pow", "ReduceMean", "Add", "Sqrt", "RMSNormalization"]


def test_below_its_opset_and_for_nodes_that_are_left_out() -> None:
    body = FORMS["division"].replace("q = Pow", "[square] q = Pow")
    assert fuse_rmsnorm(model_io.load(corpus.parse(f"{HEAD} {{ {body} }}", opset=22, ir_version=10))) == 0
    for choice in ({"exclude": "square"}, {"nodes": "Div"}):
        graph = model_io.load(corpus.parse(f"{HEAD} {{ {body} }}", opset=23, ir_version=10))
        assert fuse_rmsnorm(graph, **choice) == 0  # type: ignore[arg-type]


def test_in_bodies() -> None:
    then = FORMS["division"].replace("y =", "p =")
    text = f"""(float[B, T, {WIDTH}] x, bool c) => (float[B, T, {WIDTH}] y) {HEAD.partition(" y)")[2]} {{
        y = If (c) <then_branch = t () => (float[B, T, {WIDTH}] p) {{ {then} }},
                    else_branch = f () => (float[B, T, {WIDTH}] k) {{ k = Neg(x) }}> }}"""
    graph = model_io.load(corpus.parse(text, opset=23, ir_version=10))
    assert fuse_rmsnorm(graph) == 1
    assert [node.op for node in walk.nodes(graph)] == ["If", "RMSNormalization", "Neg"]
