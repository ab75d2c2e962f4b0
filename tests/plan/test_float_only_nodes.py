"""Oracle: the nodes listed in each test, by the tensor that they make."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.plan.float_only_nodes import float_zone
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import preset


def zone(text: str, weights: plans.Weights | None = None, *, opset: int = 18) -> set[str]:
    graph = plans.graph(text, weights, opset=opset)
    found = float_zone(graph)
    return plans.made_by(graph, found)


ATTENTION = """(float[2,5,8] x, float[2,1,1,5] mask) => (float[2,4,5,2] y)
    <int64[4] heads = {2, 5, 4, 2}, float width = {1.5}> {
    qm = MatMul(x, wq) qa = Add(qm, bq) qr = Reshape(qa, heads) q = Transpose <perm = [0, 2, 1, 3]> (qr)
    km = MatMul(x, wk) ka = Add(km, bk) kr = Reshape(ka, heads) k = Transpose <perm = [0, 2, 3, 1]> (kr)
    vm = MatMul(x, wv) va = Add(vm, bv) vr = Reshape(va, heads) v = Transpose <perm = [0, 2, 1, 3]> (vr)
    s = MatMul(q, k) d = Div(s, width) m = Add(d, mask) p = Softmax <axis = -1> (m) y = MatMul(p, v) }"""
WEIGHTS: plans.Weights = {f"w{name}": (8, 8) for name in "qkv"} | {f"b{name}": (8,) for name in "qkv"}


def test_the_scores_of_an_attention_are_in_it_and_nothing_else_is() -> None:
    assert zone(ATTENTION, WEIGHTS) == {"d", "m"}


def test_what_an_attention_quantizes() -> None:
    """Operands of all products: those of Q K^T behind the bias and the moves, and what Softmax makes."""
    found = plans.reads(plans.plan(ATTENTION, WEIGHTS))
    operands = {f"{name}.{index}" for name in ("qm", "km", "vm", "s", "y") for index in range(2)}
    moves = {f"{name}.0" for name in ("qr", "q", "kr", "k", "vr", "v")}
    assert set(found) == operands | moves | {"=y"}


@pytest.mark.parametrize("op", ("Softmax", "LogSoftmax"))
@pytest.mark.parametrize(
    "scaling",
    (
        "Add(s, w)",
        "Sub(s, w)",
        "Mul(s, w)",
        "Div(s, w)",
        "Max(s, w)",
        "Min(s, w)",
        "Clip(s)",
        "Reshape(s, to)",
        "Squeeze(s)",
        "Unsqueeze(s, first)",
        "Transpose(s)",
        "Where(c, s, w)",
    ),
)
def test_scalings_before_a_softmax(op: str, scaling: str) -> None:
    text = f"""(float[3,4] x, bool[1] c) => (float[K,L] y)
        <int64[2] to = {{4, 3}}, int64[1] first = {{0}}, float[1] w = {{2}}> {{
        s = MatMul(x, v) a = {scaling} b = Mul(a, a) e = {op} <axis = -1> (b) y = MatMul(e, u) }}"""
    if "Unsqueeze" in scaling:
        text = text.replace("[K,L]", "[K,L,M]")
    inner = 3 if "Reshape" in scaling or "Transpose" in scaling else 4
    assert zone(text, {"v": (4, 4), "u": (inner, 2)}) == {"a", "b"}


@pytest.mark.parametrize("op", ("Sigmoid", "Relu", "Tanh"))
def test_other_functions_before_a_softmax_end_the_zone(op: str) -> None:
    text = f"(float[3,4] x) => (float[3,4] y) {{ a = Mul(x, x) f = {op}(a) b = Mul(f, f) y = Softmax(b) }}"
    assert zone(text) == {"b"}


def test_a_softmax_that_is_written_out() -> None:
    text = """(float[3,4] x) => (float[3,4] y) <int64[1] last = {-1}> {
        a = MatMul(x, w) h = ReduceMax(a, last) d = Sub(a, h) e = Exp(d)
        s = ReduceSum(e, last) y = Div(e, s) }"""
    assert zone(text, {"w": (4, 4)}) == {"d"}
    assert set(plans.reads(plans.plan(text, {"w": (4, 4)}))) == {"a.0", "a.1"}


@pytest.mark.parametrize(
    "call",
    (
        "LayerNormalization(b, scale)",
        "InstanceNormalization(b, scale, shift)",
        "GroupNormalization <num_groups = 2> (b, scale, shift)",
        "LpNormalization(b)",
    ),
)
def test_sums_before_a_normalization(call: str) -> None:
    """The residual stream: sums of sums too, but nothing that is no sum."""
    text = f"""(float[2,4,4] x) => (float[2,4,4] y)
        <float[4] scale = {{1, 1, 1, 1}}, float[4] shift = {{1, 2, 3, 4}}> {{
        m = Mul(x, x) t = Tanh(m) a = Add(t, x) b = Add(a, m) y = {call} }}"""
    assert zone(text, opset=21) == {"a", "b"}


def test_only_what_is_normalized_counts_not_its_scale() -> None:
    text = """(float[2,4] x, float[4] z) => (float[2,4] y) {
        s = Add(z, z) y = LayerNormalization(x, s) }"""
    assert zone(text) == set()


def test_a_residual_sum_stays_float_before_a_normalization() -> None:
    text = """(float[2,4] x) => (float[2,4] y) <float[4] scale = {1, 1, 1, 1}> {
        a = MatMul(x, w) r = Add(a, x) n = LayerNormalization(r, scale) y = MatMul(n, v) }"""
    found = plans.reads(plans.plan(text, {"w": (4, 4), "v": (4, 4)}))
    assert set(found) == {"a.0", "a.1", "y.0", "y.1", "=y"}


@pytest.mark.parametrize("op", ("Add", "Mul", "Sub", "Div", "Concat <axis = 1>"))
@pytest.mark.parametrize("mask", (-1e4, 1e4, -3.4e38, -np.inf))
def test_masks_stay_out(op: str, mask: float) -> None:
    values = np.array([[0, 0, mask, 0]], np.float32)
    text = f"(float[1,4] x) => (float[K,L] y) {{ a = MatMul(x, w) y = {op} (a, m) }}"
    assert zone(text, {"w": (4, 4), "m": values}) == {"y"}
    assert set(plans.reads(plans.plan(text, {"w": (4, 4), "m": values}))) == {"a.0", "a.1"}


def test_constants_of_ordinary_size_are_no_masks() -> None:
    values = np.array([[0, 0, -9999, 0]], np.float32)
    text = "(float[1,4] x) => (float[1,4] y) { a = MatMul(x, w) b = Tanh(a) y = Mul(a, m) }"
    assert zone(text, {"w": (4, 4), "m": values}) == set()


def test_large_integers_and_empty_constants_are_no_masks() -> None:
    text = """(float[K,4] x) => (float[K,4] y) <int64[2] to = {100000, 4}, float[0] none = {}> {
        a = Expand(x, to) b = Concat <axis = 0> (none, none) y = Tanh(a) }"""
    assert zone(text) == set()


def test_a_bound_of_a_clip_is_no_mask() -> None:
    """Exporters write Clip(x, 0, 3.4e38) for a Relu; what it makes is a layer's result like any other."""
    text = """(float[1,3,8,8] x) => (float[1,3,8,8] y) <float low = {0}, float high = {3.4028235e38}> {
        a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Clip(a, low, high) y = Add(b, x) }"""
    assert zone(text, {"w": (3, 3, 3, 3)}) == set()
    found = plans.reads(plans.plan(text, {"w": (3, 3, 3, 3)}))
    assert set(found) == {"a.0", "a.1", "y.0", "y.1", "=y"}


def test_a_product_with_large_weights_is_quantized_all_the_same() -> None:
    found = plans.reads(
        plans.plan("(float[1,2] x) => (float[1,2] y) { y = MatMul(x, w) }", {"w": np.full((2, 2), 1e5, "f")})
    )
    assert found == {"y.0": "int8", "y.1": "uint8", "=y": "int8"}


def test_positions_and_masks_made_of_integers() -> None:
    """What comes of integers and constants alone, until a number of the model itself comes in."""
    text = """(int64[1,4] ids, int64[1,4] on, float[1,4] x) => (float[1,4] y)
        <float one = {1}, float far = {-100}> {
        f = Cast <to = 1> (on) g = Sub(one, f) mask = Mul(g, far)
        e = Gather(table, ids) s = Squeeze(e, last) p = MatMul(x, w) a = Add(p, mask) b = Add(a, s)
        y = Mul(b, b) }"""
    weights: plans.Weights = {"table": (9, 1), "last": np.array([2]), "w": (4, 4)}
    assert zone(text, weights) == {"f", "g", "mask"}


def test_bool_masks() -> None:
    text = """(bool[1,4] on, float[1,4] x) => (float[1,4] y) <float[1] far = {-9}, float[1] zero = {0}> {
        n = Not(on) m = Where(n, far, zero) k = Where(n, far, x) y = Add(k, m) }"""
    assert zone(text) == {"n", "m"}


def test_a_product_of_integers_is_a_product() -> None:
    text = """(uint8[1,4] image) => (float[1,4] y) {
        f = Cast <to = 1> (image) y = MatMul(f, w) }"""
    assert zone(text, {"w": (4, 4)}) == {"f"}
    assert plans.reads(plans.plan(text, {"w": (4, 4)})) == {"y.0": "int8", "y.1": "uint8", "=y": "int8"}


def test_shape_arithmetic() -> None:
    text = """(float[N,4] x) => (float[K,L] y) <int64 at = {0}, int64[1] four = {4}, int64[1] front = {0}> {
        p = MatMul(x, w) s = Shape(p) n = Gather(s, at) u = Unsqueeze(n, front)
        to = Concat <axis = 0> (four, u) f = Cast <to = 1> (n) r = Sqrt(f)
        q = Div(p, r) y = Reshape(q, to) }"""
    assert zone(text, {"w": (4, 4)}) == {"s", "n", "u", "to", "f", "r"}
    found = plans.reads(plans.plan(text, {"w": (4, 4)}))
    assert set(found) == {"p.0", "p.1", "q.0", "y.0", "=y"}


def test_nodes_in_bodies_are_not_looked_at() -> None:
    text = """(float[4] x, bool c) => (float[4] y) {
        y = If (c) <then_branch = t () => (float[4] p) { a = Add(x, x) p = Softmax(a) },
                    else_branch = e () => (float[4] q) { q = Identity(x) }> }"""
    graph = plans.graph(text)
    body = graph.nodes[0].attrs["then_branch"]
    assert not {id(node) for node in body.nodes} & float_zone(graph)
    assert QuantizationPlan(graph, preset("A8W8")).quantizations == []
