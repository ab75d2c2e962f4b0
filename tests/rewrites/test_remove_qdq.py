"""Quantized models back in float. Oracle: the same arithmetic in NumPy without the rounding."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest

from tests.helpers import conversion, corpus, plans, quantization
from transforms import model_io
from transforms.graph import walk
from transforms.remove_qdq import remove_qdq
from transforms.scheme import preset

X = np.linspace(-8, 8, 32, dtype=np.float32).reshape(8, 4)
WEIGHT = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)
HEAD = f"""<float s = {{0.05}}, int8 z = {{3}}, float t = {{0.5}}, uint8 low = {{0}},
    int8[4] e = {{0, 1, 2, 3}}, float[4] c = {{0.1, 0.2, 0.3, 0.4}},
    int8[4, 4] w = {{{", ".join(map(str, WEIGHT.ravel()))}}}>"""
ENDS = "(float[N, 4] x) => (float[N, 4] y)"
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
LOW, HIGH = np.float32(0.05) * np.float32(-131), np.float32(0.05) * np.float32(124)


def load(body: str, ends: str = ENDS) -> onnx.ModelProto:
    return corpus.parse(f"{ends} {HEAD} {{ {body} }}", opset=17)


@pytest.mark.parametrize("clip", [True, False])
def test_a_pair_and_a_weight(clip: bool) -> None:
    graph = model_io.load(load(f"{PAIR} v = DequantizeLinear <axis = 1> (w, c, e) y = MatMul(d, v)"))
    count, model = conversion.rewritten(graph, lambda one: remove_qdq(one, clip=clip))
    assert (count, [node.op for node in graph.nodes]) == (2, [*(["Clip"] if clip else []), "MatMul"])
    weight = graph.nodes[-1].inputs[1]
    expected = (WEIGHT - np.arange(4)).astype(np.float32) * np.float32([0.1, 0.2, 0.3, 0.4])
    assert weight.name == "w" and np.array_equal(weight.values, expected)
    values = np.clip(X, LOW, HIGH) if clip else X
    bound = 8 * 2.0**-24 * (np.abs(values) @ np.abs(expected))
    assert (
        np.abs(conversion.run(model, {"x": X})["y"] - values.astype(np.float64) @ expected) <= bound
    ).all()


@pytest.mark.parametrize("clip", [True, False])
def test_an_output_keeps_its_name(clip: bool) -> None:
    graph = model_io.load(load("a = Neg(x) q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z)"))
    count, model = conversion.rewritten(graph, lambda one: remove_qdq(one, clip=clip))
    assert (count, [node.op for node in graph.nodes]) == (1, ["Neg", "Clip"] if clip else ["Neg"])
    expected = np.clip(-X, LOW, HIGH) if clip else -X
    assert np.array_equal(conversion.run(model, {"x": X})["y"], expected)


def test_a_relu_that_is_part_of_a_quantization_stays() -> None:
    graph = model_io.load(
        load("q = QuantizeLinear(x, t, low) d = DequantizeLinear(q, t, low) y = Identity(d)")
    )
    _, model = conversion.rewritten(graph, remove_qdq)
    assert np.array_equal(conversion.run(model, {"x": X})["y"], np.maximum(X, 0))


def test_layers_that_are_chosen() -> None:
    """The first layer reads and writes floats, the second one keeps its weight and what it makes."""
    body = f"""{PAIR} v = DequantizeLinear (w, s) [one] a = MatMul(d, v)
        r = QuantizeLinear(a, t, z) b = DequantizeLinear(r, t, z) u = DequantizeLinear (w, t)
        [two] f = MatMul(b, u) g = QuantizeLinear(f, t, z) y = DequantizeLinear(g, t, z)"""
    graph = model_io.load(load(body))
    count, _ = conversion.rewritten(graph, lambda one: remove_qdq(one, nodes="one", clip=False))
    kept = ["DequantizeLinear", "MatMul", "QuantizeLinear", "DequantizeLinear"]
    assert (count, [node.op for node in graph.nodes]) == (3, ["MatMul", *kept])
    graph = model_io.load(load(body))
    count, _ = conversion.rewritten(graph, lambda one: remove_qdq(one, exclude="two", clip=False))
    assert (count, [node.op for node in graph.nodes].count("DequantizeLinear")) == (2, 3)


def test_other_readers_of_a_pair_keep_it() -> None:
    body = f"{PAIR} [one] a = Neg(d) [two] b = Exp(d) y = Add(a, b)"
    graph = model_io.load(load(body))
    count, model = conversion.rewritten(graph, lambda one: remove_qdq(one, nodes=["one"], clip=False))
    assert (count, len(graph.nodes)) == (1, 5)
    rounded = quantization.on_grid(X, 0.05, zero_point=3)
    np.testing.assert_allclose(conversion.run(model, {"x": X})["y"], np.exp(rounded) - X, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ("q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, t, z) y = Identity(d)", ENDS),  # rescales
        ("d = DequantizeLinear(i, s, z) y = Identity(d)", "(int8[N, 4] i) => (float[N, 4] y)"),
        ("q, u, v = DynamicQuantizeLinear(x) d = DequantizeLinear(q, u, v) y = Identity(d)", ENDS),
        ("m = ReduceMax(x) d = DequantizeLinear(w, m, z) y = MatMul(x, d)", ENDS),
    ],
)
def test_other_integers_stay(body: str, ends: str, caplog: pytest.LogCaptureFixture) -> None:
    graph = model_io.load(load(body, ends))
    before = [node.op for node in graph.nodes]
    with caplog.at_level(logging.DEBUG, "transforms.remove_qdq"):
        assert remove_qdq(graph) == 0
    assert [node.op for node in graph.nodes] == before and "stays" in caplog.text


def test_scales_that_are_computed_are_those_of_a_pair() -> None:
    body = "m = ReduceMax(x) q = QuantizeLinear(x, m, z) d = DequantizeLinear(q, m, z) y = Neg(d)"
    graph = model_io.load(load(body))
    assert conversion.rewritten(graph, remove_qdq)[0] == 1
    assert [node.op for node in graph.nodes] == ["Neg"]


def test_in_bodies_that_capture_integers() -> None:
    text = f"""(float[N, 4] x, bool cond) => (float[N, 4] y) {HEAD} {{ q = QuantizeLinear(x, s, z)
        y = If (cond)
            <then_branch = f () => (float[N, 4] p) {{ a = DequantizeLinear(q, s, z) p = Neg(a) }},
             else_branch = g () => (float[N, 4] k) {{ b = DequantizeLinear(q, s, z) k = Abs(b) }}> }}"""
    graph = model_io.load(corpus.parse(text, opset=17))
    count, model = conversion.rewritten(graph, remove_qdq)
    assert (count, [node.op for node in walk.nodes(graph)]) == (2, ["Clip", "If", "Neg", "Abs"])
    found = conversion.run(model, {"x": X, "cond": np.array(False)})["y"]
    assert np.array_equal(found, np.abs(np.clip(X, LOW, HIGH)))


@pytest.mark.parametrize("name", ["A8W8", "A16W8", "W4A8", "W4", "BF16", "FP16", "BFP16", "MX9", "MXINT8"])
def test_what_this_package_writes(name: str) -> None:
    """Nothing rounds any more; what rounds weights alone keeps every bit."""
    graph = plans.graph(quantization.NET, quantization.SHAPES, opset=18)
    x = np.random.default_rng(3).standard_normal((2, 3, 6, 6)).astype(np.float32)
    ranges = dict.fromkeys(("x", "c", "r", "p", "f", "y"), (-8.0, 8.0))
    chosen = preset(name).with_(weight_method="MinMax")
    quantized = quantization.write_graph(graph, chosen, ranges)
    loaded = model_io.load(quantized)
    _, model = conversion.rewritten(loaded, remove_qdq)
    rest = {node.op for node in loaded.nodes}
    assert rest <= {"Conv", "Relu", "MaxPool", "Flatten", "Gemm", "Clip"}
    assert {opset.domain for opset in model.opset_import} == {""}
    before, after = (conversion.run(one, {"x": x})["y"] for one in (quantized, model))
    assert np.abs(before - after).max() < 0.5 * np.abs(before).max()
    assert chosen.activation != "float32" or np.array_equal(before, after)
