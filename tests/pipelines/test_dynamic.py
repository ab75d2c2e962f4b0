"""The preset A8W8_DYNAMIC. Oracle: outputs of the float model on tokens that nothing was chosen on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import onnx_narrow
from tests.helpers.pre_norm import WORDS, pre_norm
from transforms.compare.float_products import write_float_products
from transforms.model import graph_proto
from transforms.run.lifelike_feeds import LENGTH, lifelike_feeds
from transforms.scheme import preset

LOUD, FACTOR = 3, 64


def with_outlier(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same in real arithmetic, with one channel of each norm as much louder as layers make it quieter."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for norm in (node for node in model.graph.node if node.op_type == "LayerNormalization"):
        for name, factor, place in [
            *((name, FACTOR, LOUD) for name in norm.input[1:]),
            *((n.input[1], 1 / FACTOR, LOUD) for n in model.graph.node if norm.output[0] in n.input[:1]),
        ]:
            values = numpy_helper.to_array(stored[name]).copy()
            values[place] *= np.float32(factor)
            stored[name].CopyFrom(numpy_helper.from_array(values, name))
    return model


MODEL = with_outlier(pre_norm(width=64))
RANDOM = np.random.default_rng(7)
SAMPLES = [{"ids": RANDOM.integers(0, WORDS, (1, 16))} for _ in range(12)]
UNSEEN = {"ids": RANDOM.integers(0, WORDS, (1, 16))}


def run(model: onnx.ModelProto) -> NDArray[np.float32]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, UNSEEN)[0])


def decibels(model: onnx.ModelProto) -> float:
    expected = run(MODEL)
    return float(10 * np.log10((expected**2).sum() / ((run(model) - expected) ** 2).sum()))


def quantized(**keywords: object) -> onnx_narrow.Result:
    given = {"config": "A8W8_DYNAMIC", "time": False, **keywords}
    return onnx_narrow.quantize(MODEL, **given)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("data", [None, SAMPLES])
def test_outliers_are_moved_without_samples_and_with(data: object) -> None:
    """They are in the weights: random tokens show them as well as others do, to 6 dB and more here."""
    given = {} if data is None else {"data": data}
    plain = quantized(assignments=["move_outliers=false"], **given)
    moved = quantized(**given)
    assert moved.scheme.outliers and not moved.scheme.move_outliers
    assert decibels(moved.model) > decibels(plain.model) + 6
    products = [n for n in MODEL.graph.node if n.op_type == "MatMul" and "mixed" not in n.name]
    assert 0 < operators(moved.model)["MatMulInteger"] <= len(products)


@pytest.mark.parametrize("data", [None, SAMPLES])
def test_the_recorded_scheme_makes_the_same_model(data: object) -> None:
    given = {} if data is None else {"data": data}
    first = quantized(**given)
    second = quantized(config=first.scheme, **given)
    assert first.model.graph == second.model.graph


def test_layers_are_dynamic_static_and_float_side_by_side() -> None:
    every = operators(quantized().model)["MatMulInteger"]
    names = [node.name for node in quantized().model.graph.node if node.op_type == "MatMulInteger"]
    fewer = quantized(assignments=[f'layers."{names[0]}".dynamic=false'])
    assert operators(fewer.model)["MatMulInteger"] == every - 1
    rule = {"dynamic": True, "weight": "int8"}
    mixed = quantized(config=preset("A8W8").with_(layers={names[0]: rule}), data=SAMPLES, fast=True)
    found = operators(mixed.model)
    assert found["MatMulInteger"] == 1 and found["QuantizeLinear"] > 0


def test_keys_that_do_not_go_with_it_are_named() -> None:
    with pytest.raises(ValueError, match="dynamic goes with activation = 'float32', not 'int8'"):
        preset("A8W8").with_(dynamic=True)
    with pytest.raises(
        ValueError, match="layers entry 'x': dynamic goes with weight = 'int8' or 'uint8', not 'int4'"
    ):
        preset("W4").with_(layers={"x": {"dynamic": True}})
    with pytest.raises(ValueError, match="dynamic does not go with keep_weight_nodes"):
        preset("A8W8_DYNAMIC").with_(keep_weight_nodes=True)


def test_layers_with_little_to_store_stay_float() -> None:
    """16 x 32 numbers are 2 KiB of float32; the layer of 64 x 64 beside them has integers."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[2,16] x) => (float[2,64] y)
        <float[16,32] a, float[32,64] b, float[64,64] c>
        { h = MatMul(x, a) i = MatMul(h, b) y = MatMul(i, c) }"""
    model = onnx.parser.parse_model(text.replace("<float[16,32] a, float[32,64] b, float[64,64] c>", ""))
    for name, shape in {"a": (16, 32), "b": (32, 64), "c": (64, 64)}.items():
        values = RANDOM.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    made = onnx_narrow.quantize(model, config="A8W8_DYNAMIC", time=False).model
    assert operators(made)["MatMulInteger"] == 2 and operators(made)["MatMul"] == 1


def test_candidates_are_judged_as_they_are_written() -> None:
    """The judge feeds float weights after roundings at run time; what that gains is what the files gain."""
    result = quantized(data=SAMPLES)
    [chosen] = [one for one in result.decided if one.move == "outliers"]
    plain = quantized(data=SAMPLES, assignments=["move_outliers=false"])
    assert chosen.kept
    assert chosen.gain.decibels == pytest.approx(decibels(result.model) - decibels(plain.model), abs=3)


def test_products_are_known_by_their_float_form() -> None:
    """Other sums of the same numbers; the model of ONNX Runtime's own quantizer has the same form."""
    made = quantized().model
    graph = graph_proto.import_model(made)
    assert write_float_products(graph) == operators(made)["MatMulInteger"]
    assert write_float_products(graph) == 0
    back = graph_proto.export_model(graph)
    onnx.checker.check_model(back, full_check=True)
    np.testing.assert_allclose(run(back), run(made), rtol=1e-3, atol=1e-3 * np.abs(run(made)).max())


def test_random_feeds_are_tokens_of_the_vocabulary() -> None:
    feeds = list(lifelike_feeds(graph_proto.import_model(MODEL), 4))
    ids = np.concatenate([feed["ids"] for feed in feeds])
    assert ids.min() >= 0 and WORDS // 2 < ids.max() < WORDS
    again = lifelike_feeds(graph_proto.import_model(MODEL), 4)
    assert all(np.array_equal(one["ids"], two["ids"]) for one, two in zip(feeds, again, strict=True))


def test_free_dimensions_of_a_name_have_one_size() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]>
        g (float[batch,time,8] x, int64[batch,time] mask, bool[time] on) => (float[batch,time,8] y)
        { y = Identity(x) }"""
    [feed] = lifelike_feeds(gs.import_onnx(onnx.parser.parse_model(text)), 1)
    shapes = {name: array.shape for name, array in feed.items()}
    assert shapes == {"x": (1, LENGTH, 8), "mask": (1, LENGTH), "on": (LENGTH,)}
    assert feed["mask"].all() and feed["on"].all() and feed["x"].std() > 0.5
