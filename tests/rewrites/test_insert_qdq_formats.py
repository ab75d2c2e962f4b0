"""Oracles: NumPy's casts, ops.reference for blocks, and the same model in another domain or opset."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import ops
from ops import reference
from tests.helpers import conversion, plans, quantization
from tests.helpers.quantization import (
    EXTENDED,
    NET,
    SHAPES,
    inputs,
    node,
    ops_used,
    opset,
    random,
    scheme,
    source,
    stored,
    twin,
    write,
)
from transforms.insert_qdq import insert_qdq, least_opset, raise_opset
from transforms.model.read_model import ModelError
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme.presets import PLAIN
from transforms.scheme.scheme import LayerRule, Scheme
from transforms.scheme.sources import preset


def pool(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x.reshape(*x.shape[:2], 2, 2, 2, 2).max((3, 5))


# Which operators


@pytest.mark.parametrize("domain", (ops.DOMAIN, ops.AMD_DOMAIN))
@pytest.mark.parametrize("format", ("bfloat16", "float16", "int32", "uint32"))
def test_formats_of_the_extended_operators(format: str, domain: str) -> None:
    weights = SHAPES
    chosen = scheme(Scheme(format, format), domain=domain)
    ranges = dict.fromkeys(("x", "r", "y"), (-4.0, 4.0))
    model = write(NET, weights, chosen, ranges, opset=13)
    assert {op for where, op in ops_used(model) if where == domain} == set(EXTENDED)
    assert {where for where, _ in ops_used(model)} == {"", domain}
    assert (opset(model), opset(model, domain)) == (13, 1)
    dequantize = source(model, node(model, "c"), 1)
    assert dequantize.op_type == EXTENDED[1]
    values, _, zero_point = inputs(model, dequantize)
    assert values.dtype == zero_point.dtype == ops.FORMATS[format].dtype
    exact = conversion.run(plans.model(NET, weights, opset=13), {"x": random(2, 3, 6, 6)})["y"]
    found = conversion.run(model, {"x": random(2, 3, 6, 6)})["y"]
    assert 0 < np.abs(found - exact).max() < 2.0**-6 * np.abs(exact).max()


def test_float_formats_share_a_neutral_scale_and_round_weights_to_nearest() -> None:
    w = random(4, 6) * np.array([1, 1e6, 1e-6, 1, 1, 1], np.float32)
    text = "(float[2,4] x) => (float[2,6] y) { y = MatMul(x, w) }"
    for name, narrow in (("BF16", ml_dtypes.bfloat16), ("FP16", np.float16)):
        model = write(text, {"w": w}, scheme(name))
        values, scale, zero_point = inputs(model, source(model, node(model, "y_raw"), 1))
        expected = np.clip(w, -65504, 65504).astype(narrow) if name == "FP16" else w.astype(narrow)
        assert np.array_equal(values, expected)
        assert (scale, zero_point) == (1, 0) and scale.dtype == np.float32
        assert len({n.input[1] for n in model.graph.node if n.op_type in EXTENDED}) == 1


def test_old_opsets_take_wide_integers_in_another_domain() -> None:
    weights = SHAPES
    ranges = {"x": (-1, 1), "r": (0, 2), "y": (-3, 3)}
    x = random(2, 3, 6, 6)
    for name in ("A16W8", "W4A8", "U16S8", "A8W8"):
        old = write(NET, weights, scheme(name, qdq_domain="com.microsoft"), ranges, opset=13)
        new = write(NET, weights, scheme(name), ranges, opset=13)
        assert (opset(old), opset(old, "com.microsoft")) == (13, 1)
        assert {where for where, op in ops_used(old) if "quantize" in op.lower()} == {"com.microsoft"}
        assert opset(new) == (13 if name == "A8W8" else 21)
        assert conversion.same(conversion.run(old, {"x": x}), conversion.run(new, {"x": x}))


def test_the_opset_that_a_scheme_needs() -> None:
    wide = {"A16W8", "U16S8", "W4A8", "W4", "W4_MIXED"}
    assert {name for name in PLAIN if least_opset(preset(name)) == 21} == wide
    assert {least_opset(preset(name)) for name in PLAIN.keys() - wide - {"W2"}} == {13}
    assert least_opset(preset("W2")) == least_opset(preset("A8W8").with_(tensors={"w": "uint2"})) == 25
    plain = preset("A8W8")
    assert least_opset(plain.with_(tensors={"x": "uint16"})) == 21
    assert least_opset(plain.with_(layers={"Conv": LayerRule(weight="int4")})) == 21
    assert least_opset(plain.with_(layers={"Conv": "int16"}, qdq_domain="com.microsoft")) == 13
    assert least_opset(preset("FP16").with_(layers={"Conv": "bfloat16"})) == 13


def test_an_opset_that_is_too_low_is_refused() -> None:
    text, weights = "(float[2,4] x) => (float[2,6] y) { y = MatMul(x, w) }", {"w": (4, 6)}
    graph = plans.graph(text, weights, opset=20)
    planned = QuantizationPlan(graph, preset("A16W8"))
    with pytest.raises(ModelError, match=r"^the scheme needs opset 21, the model has 20: raise it first$"):
        insert_qdq(planned, quantization.Given({"x": (-1, 1), "y": (-1, 1)}))
    assert raise_opset(graph, preset("A16W8")) == 1 and graph.opset == 21
    assert raise_opset(graph, preset("A16W8")) == raise_opset(graph, preset("A8W8")) == 0


# Blocks


@pytest.mark.parametrize(
    "name", ("bfp16", "mx4", "mx6", "mx9", "mxint8", "mxfp8_e4m3", "mxfp6_e3m2", "mxfp4")
)
def test_blocks_run_along_the_sum(name: str) -> None:
    row = ops.FORMATS[name]
    weights = {"k": random(4, 3, 3, 3), "b": random(4), "w": random(5, 16), "d": random(5)}
    model = write(NET, weights, Scheme(name, name))
    for reader, weight, axis in (("c", "k", 1), ("y", "w", 1)):
        blocks = source(model, node(model, reader), 0)
        assert (blocks.domain, blocks.op_type) == (ops.DOMAIN, row.op)
        found = {a.name: onnx.helper.get_attribute_value(a) for a in blocks.attribute}
        found = {key: value.decode() if isinstance(value, bytes) else value for key, value in found.items()}
        assert found == {**row.attributes, "axis": axis}
        assert np.array_equal(stored(model)[weight], twin(weights[weight], name, axis))
        assert weight in node(model, reader).input  # under its own name, without a node
    assert np.array_equal(stored(model)["b"], weights["b"])
    x = random(2, 3, 6, 6)
    hidden = pool(np.maximum(_float_layer(model, twin(x, name, 1)), 0)).reshape(2, 16)
    expected = twin(hidden, name, 1) @ stored(model)["w"].T + weights["d"]
    # Sums of 16 products in another order: 16 * 2^-24 of the largest, with a margin of 4.
    bound = 4 * 16 * 2.0**-24 * (np.abs(twin(hidden, name, 1)) @ np.abs(stored(model)["w"].T)).max()
    assert np.abs(conversion.run(model, {"x": x})["y"] - expected).max() <= bound


def _float_layer(model: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what ONNX Runtime makes of the first layer, to be rounded as it is in the model."""
    text = "(float[2,3,6,6] x) => (float[2,4,4,4] c) { c = Conv(x, k, b) }"
    known = stored(model)
    return conversion.run(plans.model(text, {"k": known["k"], "b": known["b"]}), {"x": x})["c"]


@pytest.mark.parametrize(
    ("text", "shapes", "axes"),
    (
        ("(float[2,3,5] x) => (float[2,3,7] y) { y = MatMul(x, w) }", (5, 7), (2, 0)),
        (
            "(float[5,3] x) => (float[3,7] y) { y = Gemm <transA = 1, transB = 1> (x, w) }",
            (7, 5),
            (0, 1),
        ),
        ("(float[2,5,4,4] x) => (float[A,B,C,D] y) { y = ConvTranspose(x, w) }", (5, 7, 3, 3), (1, 0)),
    ),
)
def test_axis_of_blocks(text: str, shapes: tuple[int, ...], axes: tuple[int, int]) -> None:
    w = random(*shapes)
    model = write(text, {"w": w}, scheme("MXINT8"))
    blocks = source(model, node(model, "y"), 0)
    assert quantization.axis(blocks) == axes[0]
    assert np.array_equal(stored(model)["w"], twin(w, "mxint8", axes[1]))
    assert not np.array_equal(stored(model)["w"], twin(w, "mxint8", 1 - axes[1]))
    kept = write(text, {"w": w}, scheme("MXINT8", keep_weight_nodes=True))
    assert quantization.axis(source(kept, node(kept, "y"), 1)) == axes[1]


def test_formats_that_a_scheme_defines() -> None:
    own = {"base": "bfp16", "bit_width": 13, "block_size": 4}
    text, w = "(float[2,8] x) => (float[2,6] y) { y = MatMul(x, w) }", random(8, 6)
    model = write(text, {"w": w}, Scheme("own", "own", formats={"own": own}))
    blocks = source(model, node(model, "y"), 0)
    found = {a.name: a.i for a in blocks.attribute if a.type == onnx.AttributeProto.INT}
    assert (found["bit_width"], found["block_size"], found["axis"]) == (13, 4, 1)
    assert np.array_equal(
        stored(model)["w"], reference.bfp(w, 0, bit_width=13, block_size=4, rounding_mode=2)
    )


@pytest.mark.parametrize("name", ("MX6", "BFP16", "BF16"))
def test_our_operators_in_the_domain_of_another_tool(name: str) -> None:
    text, weights = "(float[2,8] x) => (float[2,6] y) { y = MatMul(x, w) }", {"w": (8, 6)}
    ours, theirs = (write(text, weights, scheme(name, domain=d)) for d in (ops.DOMAIN, ops.AMD_DOMAIN))
    assert {where for where, _ in ops_used(theirs)} == {"", ops.AMD_DOMAIN}
    assert sorted(one.domain for one in theirs.opset_import) == ["", ops.AMD_DOMAIN]
    feeds = {"x": random(2, 8)}
    assert conversion.same(conversion.run(ours, feeds), conversion.run(theirs, feeds))
