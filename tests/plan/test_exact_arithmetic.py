"""Oracle: the nodes listed here, by the tensor that they make; numbers of the float model, rounded once."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray

from tests.helpers import plans
from tests.helpers.spread import spread
from transforms import model_io
from transforms.conversion import inspect_bf16
from transforms.insert_bf16_qdq import insert_bf16_qdq
from transforms.insert_cast import insert_cast
from transforms.pipelines.why_nothing import why_nothing
from transforms.plan import exact_arithmetic as rule
from transforms.plan.exact_arithmetic import exact_arithmetic
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.run_model import open_model
from transforms.scheme import preset
from transforms.simulate_bf16 import simulate_bf16

HALF, LENGTH = 8, 48
"""Frequencies, and tokens of a sample."""

FREQUENCIES: plans.Weights = {"w": (1e4 ** -(np.arange(HALF) / HALF)).astype(np.float32)[None, :, None]}

ANGLES = """(int64[1, T] ids) => (float[1, T, 16] c, float[1, T, 16] s)
    <int64[1] axis = {1}, int64[1] first = {1}> {
    u = Unsqueeze(ids, axis) p = Cast <to = 1> (u) {product} t = Transpose <perm = [0, 2, 1]> (m)
    a = Concat <axis = -1> (t, t) c = Cos(a) s = Sin(a) }"""
"""Sines and cosines of the angles by which an attention turns its tokens (RoPE, arXiv 2104.09864, eq. 15)."""

EVERY = {"p", "m", "t", "a", "c", "s"}


def angles(product: str = "m = MatMul(w, p)") -> str:
    return ANGLES.replace("{product}", product)


def exact(text: str, weights: plans.Weights | None = None) -> set[str]:
    graph = plans.graph(text, weights)
    found = exact_arithmetic(graph)
    return plans.made_by(graph, found)


PRODUCTS = {
    "a matrix": ("m = MatMul(w, p)", set()),
    "factors": ("m = Mul(w, p)", set()),
    "an outer product": (
        'v = Squeeze(w) q = Squeeze(p, first) e = Einsum <equation = "bt, f -> bft"> (q, v) m = Identity(e)',
        {"v", "q", "e"},
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_angles_of_positions(name: str) -> None:
    product, more = PRODUCTS[name]
    assert exact(angles(product), FREQUENCIES) == EVERY | more


OTHERS = {
    "a step in time": (
        "(float[1] x) => (float[1, 16] c, float[1, 16] s) { m = Mul(x, v) c = Cos(m) s = Sin(m) }",
        {"m", "c", "s"},
    ),
    "places of points": (
        "(float[9, 3] x) => (float[9, 16] c, float[9, 16] s) { m = MatMul(x, b) c = Cos(m) s = Sin(m) }",
        {"m", "c", "s"},
    ),
    "a sine alone": ("(float[1] x) => (float[1, 16] s) { m = Mul(x, v) s = Sin(m) }", set()),
    "a layer before a sine": ("(float[2, 16] x) => (float[2, 16] s) { m = MatMul(x, w) s = Sin(m) }", set()),
    "an activation before both": (
        "(float[1, 16] x) => (float[1, 16] c, float[1, 16] s)"
        " { g = Sigmoid(x) m = Mul(g, v) c = Cos(m) s = Sin(m) }",
        set(),
    ),
    "a number of the largest": (
        "(float[2, 16] x) => (int64[2, 1] k) { g = Relu(x) i = ArgMax <axis = 1> (g) f = Cast <to = 1> (i)"
        " d = Mul(f, h) r = Floor(d) k = Cast <to = 7> (r) }",
        {"f", "d", "r", "k"},
    ),
    "a length": (
        "(int64[1] n, float[1, 16] x) => (float[1, 16] y)"
        " { f = Cast <to = 1> (n) d = Mul(f, h) l = Less(v, d) y = Where(l, x, v) }",
        {"f", "d", "l"},
    ),
    "tokens": (
        "(float[5] x) => (float[5, 16] y)"
        " { i = Cast <to = 7> (x) j = Add(i, one) e = Gather(w, j) y = Relu(e) }",
        {"i"},
    ),
    "tokens counted by a mask": (
        "(float[1, 5] x) => (float[1, 5, 16] y)"
        " { c = CumSum(x, one) i = Cast <to = 7> (c) e = Gather(w, i) y = Relu(e) }",
        {"c", "i"},
    ),
    "the nearest of points": (
        "(float[9, 3] x) => (float[9, 4, 3] y)"
        " { t = Transpose(x) m = MatMul(x, t) q = Mul(x, x) r = ReduceSum(q, last) d = Sub(m, r)"
        " n, i = TopK(d, four) e = Gather(x, i) y = Relu(e) }",
        {"t", "m", "q", "r", "d", "n"},
    ),
    "a neighbour": (
        "(float[9, 16] x, int64[9] k) => (float[9, 16] y) { e = Gather(x, k) d = Sub(e, x) y = Tanh(d) }",
        {"e", "d"},
    ),
    "a row": (
        "(float[9, 16] x) => (float[9, 16] y) { e = Gather(x, last) d = Sub(e, x) y = Tanh(d) }",
        set(),
    ),
    "distances from a mean": (
        "(float[2, 16] x) => (float[2, 16] y) { m = ReduceMean(x, last) d = Sub(x, m) y = Tanh(d) }",
        set(),
    ),
    "a difference of two inputs": (
        "(float[2, 16] x, float[2, 16] z) => (float[2, 16] y) { d = Sub(x, z) y = Tanh(d) }",
        set(),
    ),
    "a difference from a constant": (
        "(float[2, 16] x) => (float[2, 16] y) { d = Sub(x, h) y = Tanh(d) }",
        set(),
    ),
    "the largest numbers": ("(float[9] x) => (float[4] n, int64[4] i) { n, i = TopK(x, four) }", set()),
    "numbers cut to integers": (
        "(float[5] x) => (int64[5] j) { i = Cast <to = 7> (x) j = Add(i, one) }",
        set(),
    ),
    "a number of the input beside a bound": ("(float[5] x) => (bool[5] g) { g = Greater(x, h) }", set()),
    "constants": (
        "(float[1, 16] x) => (float[1, 16] y) { n = Neg(v) g = Less(n, h) y = Where(g, x, n) }",
        set(),
    ),
    "a mask": (
        "(int64[1, 16] n, float[1, 16] x) => (float[1, 16] y)"
        " { f = Cast <to = 1> (n) d = Mul(f, h) s = Add(x, d) y = Softmax(s) }",
        set(),
    ),
    "places in an image": (
        "(float[1, 1, 9, 9] x, int64[1, 3, 3, 2] n) => (float[1, 1, 3, 3] y)"
        " { f = Cast <to = 1> (n) d = Mul(f, h) y = GridSample(x, d) }",
        {"f", "d", "y"},
    ),
    "a grid that is given": (
        "(float[1, 1, 9, 9] x, float[1, 3, 3, 2] n) => (float[1, 1, 3, 3] y)"
        " { d = Mul(n, h) y = GridSample(x, d) }",
        {"d", "y"},
    ),
    "a grid that is moved by a layer": (
        "(float[1, 1, 9, 9] x, float[1, 3, 3, 16] z) => (float[1, 1, 3, 3] y)"
        " { m = MatMul(z, pairs) g = Tanh(m) p = Mul(g, h) d = Add(p, h) i = Relu(x) y = GridSample(i, d) }",
        {"p", "d", "y"},
    ),
    "regions": (
        "(float[1, 1, 9, 9] x, float[4, 4] n, int64[4] k) => (float[4, 1, 1, 1] y)"
        " { d = Mul(n, h) y = RoiAlign(x, d, k) }",
        {"d", "y"},
    ),
    "lengths of sounds": (
        "(float[1, 16] x) => (float[1, 16] y) { m = MatMul(x, w) e = Exp(m) l = Ceil(e) c = CumSum(l, last)"
        " g = Less(v, c) y = Where(g, x, m) }",
        {"l", "c", "g"},
    ),
    "how many frames": (
        "(float[1, 16] x) => (int64[1, 1] n) { m = MatMul(x, w) l = Round(m) r = ReduceSum(l, last)"
        " n = Cast <to = 7> (r) }",
        {"l", "r", "n"},
    ),
    "a root": (
        "(float[1, 16] x) => (float[1, 16] y) { m = MatMul(x, w) q = Mul(m, m) d = Sub(q, x) y = Sqrt(d) }",
        {"q", "d", "y"},
    ),
    "in a body": (
        "(int64[1] n, bool c) => (float[1] y) { f = Cast <to = 1> (n) y = If (c) <"
        " then_branch = one () => (float[1] p) { d = Mul(f, h) p = Sin(d) },"
        " else_branch = two () => (float[1] q) { q = Mul(f, h) }> }",
        {"f", "d", "p"},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_integers_and_inputs_become(name: str) -> None:
    text, expected = OTHERS[name]
    random = np.random.default_rng(0)
    held = {
        "w": random.standard_normal((16, 16)).astype(np.float32),
        "b": random.standard_normal((3, 16)).astype(np.float32),
        "v": random.standard_normal((1, 16)).astype(np.float32),
        "pairs": random.standard_normal((16, 2)).astype(np.float32),
        "h": np.array(0.5, np.float32),
        "one": np.array(1, np.int64),
        "last": np.array([1], np.int64),
        "four": np.array([4], np.int64),
    }
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    assert exact(text, {key: values for key, values in held.items() if key in words}) == expected


def _angle_feed() -> dict[str, NDArray]:
    return {"ids": np.arange(1001, 1001 + LENGTH, dtype=np.int64)[None]}


@pytest.mark.parametrize("write", (insert_cast, insert_bf16_qdq))
def test_angles_are_rounded_once_at_their_ends(write: Callable[[gs.Graph], int]) -> None:
    text = angles().replace("c = Cos(a) s = Sin(a)", "e = Cos(a) f = Sin(a) c = Abs(e) s = Abs(f)")
    graph = plans.graph(text, FREQUENCIES)
    wanted = open_model(graph).run(_angle_feed())
    write(graph)
    found = open_model(graph).run(_angle_feed())
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_frequencies_stay_when_bf16_is_simulated() -> None:
    graph = plans.graph(angles(), FREQUENCIES)
    wanted = open_model(graph).run(_angle_feed())
    simulate_bf16(graph)
    found = open_model(graph).run(_angle_feed())
    assert all(np.array_equal(found[name], values) for name, values in wanted.items())


def test_tokens_given_as_floats_are_looked_up() -> None:
    table = np.random.default_rng(2).standard_normal((2000, 4)).astype(np.float32)
    text = "(float[N] x) => (float[N, 4] y) { i = Cast <to = 7> (x) y = Gather(table, i) }"
    graph = plans.graph(text, {"table": table})
    insert_cast(graph)
    found = open_model(graph).run({"x": np.array([3, 1001, 1999], np.float32)})["y"]
    np.testing.assert_array_equal(found, table[[3, 1001, 1999]].astype(ml_dtypes.bfloat16).astype(np.float32))


def test_why_steps_and_thresholds_are_kept() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]> main (float[4,1] x) => (int16[4,1] y)
        <float full = {32767.0}> {
            s = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x) t = Tanh(s) m = Mul(t, full)
            y = Cast <to = 5> (m) }"""
    graph = model_io.load(onnx.parser.parse_model(text))
    insert_cast(graph)
    tally = inspect_bf16.tally(graph, None, "with_cast")
    assert tally.converted == 1
    assert {reason: dict(ops) for reason, ops in tally.kept.items()} == {
        "rounding would ruin what it makes": {"Mul": 1, "Cast": 1},
        "thresholds and scales of ai.onnx.ml": {"Scaler": 1},
    }


def test_why_they_are_kept() -> None:
    graph = plans.graph(angles(), FREQUENCIES)
    insert_cast(graph)
    tally = inspect_bf16.tally(graph, None, "with_cast")
    assert tally.converted == 0
    assert {reason: dict(ops) for reason, ops in tally.kept.items()} == {
        "arithmetic on positions": {"Cast": 1, "MatMul": 1, "Transpose": 1, "Concat": 1, "Cos": 1, "Sin": 1}
    }
    for config in ("A8W8", "W8", "MXINT8"):
        lines = list(why_nothing(lambda: plans.graph(angles(), FREQUENCIES), preset(config)))
        assert any(line.startswith("Ruined by any rounding") and "MatMul 1" in line for line in lines), lines


TURNED = """(int64[1, T] ids, float[1, T, 16] x) => (float[1, T, 16] y)
    <int64[1] axis = {1}, int64[1] n0 = {0}, int64[1] n8 = {8}, int64[1] n16 = {16},
    int64[1] last = {2}> {
    u = Unsqueeze(ids, axis) p = Cast <to = 1> (u) m = MatMul(w, p) t = Transpose <perm = [0, 2, 1]> (m)
    a = Concat <axis = -1> (t, t) c = Cos(a) s = Sin(a)
    q = MatMul(x, wq) q1 = Slice(q, n0, n8, last) q2 = Slice(q, n8, n16, last) qn = Neg(q2)
    qr = Concat <axis = -1> (qn, q1) qc = Mul(q, c) qs = Mul(qr, s) qt = Add(qc, qs)
    k = MatMul(x, wk) k1 = Slice(k, n0, n8, last) k2 = Slice(k, n8, n16, last) kn = Neg(k2)
    kr = Concat <axis = -1> (kn, k1) kc = Mul(k, c) ks = Mul(kr, s) kt = Add(kc, ks)
    kk = Transpose <perm = [0, 2, 1]> (kt) z = MatMul(qt, kk) g = Softmax <axis = -1> (z)
    v = MatMul(x, wv) o = MatMul(g, v) y = MatMul(o, wo) }"""
"""An attention of one head that turns its tokens."""


def _attention() -> gs.Graph:
    return plans.graph(TURNED, FREQUENCIES | dict.fromkeys(("wq", "wk", "wv", "wo"), (16, 16)))


FORMATS = ["A8W8", "U8S8", "A16W8", "W8", "BF16", "FP16", "BFP16", "MX9", "MXINT8", "XINT8", "INT32"]


@pytest.mark.parametrize("config", FORMATS)
def test_no_format_reaches_the_angles(config: str) -> None:
    for every in (False, True):
        graph = _attention()
        planned = QuantizationPlan(graph, preset(config).with_(quantize_all_op_types=every))
        places = {place.split(".")[0] for place in plans.reads(planned)}
        assert not EVERY & places
        assert {"q", "k", "v", "y"} <= places


@pytest.mark.parametrize("config", spread(FORMATS, of=2))
def test_an_attention_knows_where_its_tokens_are(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    tokens = 2 * random.standard_normal((20, 16))

    def _feed() -> dict[str, NDArray]:
        start, chosen = random.integers(0, 1900), tokens[random.integers(0, 20, LENGTH)]
        x = chosen + 0.1 * random.standard_normal((LENGTH, 16))
        return {"ids": np.arange(start, start + LENGTH)[None], "x": x[None].astype(np.float32)}

    feeds = [_feed() for _ in range(12)]

    def _decibels() -> float:
        return plans.decibels(_attention(), preset(config).with_(keep_float=False), feeds, 4)

    kept = _decibels()
    monkeypatch.setattr(rule, "positions", lambda graph, sizes: set())
    assert kept > _decibels() + 5
