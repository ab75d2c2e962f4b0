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
from transforms.features.dynamic.float_products import write_float_products
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


MODEL = with_outlier(pre_norm(width=128))
RANDOM = np.random.default_rng(7)
SAMPLES = [{"ids": RANDOM.integers(0, WORDS, (1, 16))} for _ in range(12)]
UNSEEN = {"ids": RANDOM.integers(0, WORDS, (1, 16))}


def run(model: onnx.ModelProto, *, optimized: bool = True) -> NDArray[np.float32]:
    options, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, UNSEEN)[0])


def decibels(model: onnx.ModelProto) -> float:
    expected = run(MODEL)
    return float(10 * np.log10((expected**2).sum() / ((run(model) - expected) ** 2).sum()))


def quantized(**keywords: object) -> onnx_narrow.Result:
    given = {"model": MODEL, "config": "A8W8_DYNAMIC", "time": False, **keywords}
    return onnx_narrow.quantize(given.pop("model"), **given)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def in_integers(model: onnx.ModelProto) -> list[str]:
    """Return the names of the products that read what is rounded at run time."""
    makers = {name: node for node in model.graph.node for name in node.output}
    rounded = {node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    return [
        node.name
        for node in model.graph.node
        if node.op_type == "MatMulInteger"
        or (node.op_type == "MatMul" and (made := makers.get(node.input[0])) and made.input[0] in rounded)
    ]


@pytest.mark.parametrize("data", [None, SAMPLES])
def test_outliers_are_moved_without_samples_and_with(data: object) -> None:
    """They are in the weights: random tokens show them as well as others do, to 6 dB and more here."""
    given = {} if data is None else {"data": data}
    plain = quantized(assignments=["move_outliers=false"], **given)
    moved = quantized(**given)
    assert moved.scheme.outliers and not moved.scheme.move_outliers
    assert decibels(moved.model) > decibels(plain.model) + 6
    products = [n for n in MODEL.graph.node if n.op_type == "MatMul" and "mixed" not in n.name]
    assert 0 < len(in_integers(moved.model)) <= len(products)


@pytest.mark.parametrize("data", [None, SAMPLES])
def test_the_recorded_scheme_makes_the_same_model(data: object) -> None:
    given = {} if data is None else {"data": data}
    first = quantized(**given)
    second = quantized(config=first.scheme, **given)
    assert first.model.graph == second.model.graph


def test_layers_are_dynamic_static_and_float_side_by_side() -> None:
    names = in_integers(quantized().model)
    fewer = quantized(assignments=[f'layers."{names[0]}".dynamic=false'])
    assert in_integers(fewer.model) == names[1:]
    rule = {"dynamic": True, "weight": "int8"}
    mixed = quantized(config=preset("A8W8").with_(layers={names[0]: rule}), data=SAMPLES, fast=True)
    assert names[0] in in_integers(mixed.model) and operators(mixed.model)["ReduceMax"] == 1


def test_keys_that_do_not_go_with_it_are_named() -> None:
    with pytest.raises(ValueError, match="dynamic requires activation = 'float32', not 'int8'"):
        preset("A8W8").with_(dynamic=True)
    with pytest.raises(
        ValueError, match="layers entry 'x': dynamic requires weight = 'int8' or 'uint8', not 'int4'"
    ):
        preset("W4").with_(layers={"x": {"dynamic": True}})
    with pytest.raises(ValueError, match="dynamic cannot be combined with keep_weight_nodes"):
        preset("A8W8_DYNAMIC").with_(keep_weight_nodes=True)


@pytest.mark.parametrize(("ranges", "counts"), [("row", (1, 3)), ("tensor", (3, 1))])
def test_layers_that_integers_do_not_pay_for_stay_float(ranges: str, counts: tuple[int, int]) -> None:
    """16 x 32 numbers are 2 KiB of float32. Rounding rows takes longer than multiplying 64 x 64."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[2,16] x) => (float[2,192] y)
        { h = MatMul(x, a) i = MatMul(h, b) j = MatMul(i, c) y = MatMul(j, d) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"a": (16, 32), "b": (32, 64), "c": (64, 64), "d": (64, 192 * 8)}.items():
        values = RANDOM.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 192 * 8
    made = quantized(model=model, assignments=[f"dynamic_ranges={ranges}"]).model
    in_float = operators(made)["MatMul"] + operators(made)["MatMulInteger"] - len(in_integers(made))
    assert (len(in_integers(made)), in_float) == counts
    types = {one.name: one.data_type for one in made.graph.initializer}
    assert [name for name in "abcd" if types.get(name) == onnx.TensorProto.FLOAT] == ["a"]


@pytest.mark.parametrize("ranges", ["row", "tensor"])
def test_with_ranges_of_rows_padding_and_a_batch_change_no_number(ranges: str) -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[b,t,128] x) => (float[b,t,128] y)
        { h = MatMul(x, a) i = Tanh(h) y = MatMul(i, c) }"""
    model = onnx.parser.parse_model(text)
    for name, shape in {"a": (128, 256), "c": (256, 128)}.items():
        values = RANDOM.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    made = quantized(model=model, assignments=[f"dynamic_ranges={ranges}"]).model
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    sentence = RANDOM.standard_normal((1, 7, 128)).astype(np.float32)
    padded = np.concatenate([sentence, np.full((1, 20, 128), 3, np.float32)], axis=1)
    together = np.concatenate([padded, 5 * RANDOM.standard_normal(padded.shape).astype(np.float32)])
    alone, *others = (session.run(None, {"x": x})[0][0, :7] for x in (sentence, padded, together))
    assert [np.array_equal(alone, other) for other in others] == [ranges == "row"] * 2


@pytest.mark.parametrize("ranges", ["row", "tensor"])
def test_no_sum_saturates_where_products_are_added_in_pairs_of_16_bits(ranges: str) -> None:
    """255 (q0 + q1) is beyond 16 bits from 129 on; weights that are multiplied in float use all of int8."""
    first = in_integers(quantized(assignments=[f"dynamic_ranges={ranges}"]).model)[0]
    keys = [f"dynamic_ranges={ranges}", f'layers."{first}".dynamic=false', "move_outliers=false"]
    made = quantized(assignments=keys).model
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    dequantized = {n.output[0]: n.input[0] for n in made.graph.node if n.op_type == "DequantizeLinear"}
    layers = [node for node in made.graph.node if node.op_type in ("MatMul", "MatMulInteger", "Gemm")]
    weights = {
        n.name: stored[dequantized.get(n.input[1], n.input[1])]
        for n in layers
        if "mixed" not in n.name and "scores" not in n.name
    }
    pairs = {name: np.abs(w[::2].astype(int) + w[1::2]).max() for name, w in weights.items()}
    assert len(in_integers(made)) > 5 and all(120 < pairs[name] <= 128 for name in in_integers(made))
    assert pairs[first] > 140


def test_candidates_are_judged_as_they_are_written() -> None:
    """The judge feeds float weights after roundings at run time; what that gains is what the files gain."""
    result = quantized(data=SAMPLES)
    [chosen] = [one for one in result.decided if one.move == "outliers"]
    plain = quantized(data=SAMPLES, assignments=["move_outliers=false"])
    assert chosen.kept
    assert chosen.gain.decibels == pytest.approx(decibels(result.model) - decibels(plain.model), abs=3)


@pytest.mark.parametrize("ranges", ["row", "tensor"])
def test_products_are_known_by_their_float_form(ranges: str) -> None:
    """Other sums of the same numbers; the model of ONNX Runtime's own quantizer has the same form."""
    made = quantized(assignments=[f"dynamic_ranges={ranges}"]).model
    graph = graph_proto.import_model(made)
    names, roundings = in_integers(made), write_float_products(graph)
    products = [node for node in graph.nodes if node.name in names]
    assert products and {node.op for node in products} == {"MatMul"}
    makers = [node.inputs[0].inputs[0] for node in products]
    assert {node.op for node in makers} == {"Mul" if ranges == "row" else "DequantizeLinear"}
    assert roundings >= {id(node) for node in makers if node.op == "Mul"}
    assert not write_float_products(graph)
    back = graph_proto.export_model(graph)
    onnx.checker.check_model(back, full_check=True)
    found, expected = (run(model, optimized=False) for model in (back, made))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


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


def test_without_samples_the_figure_is_of_random_numbers() -> None:
    result = quantized()
    [line] = [note for note in result.notes if note.startswith("Outputs:")]
    assert line.endswith("on 4 inputs of random numbers")
    assert not any("was not measured" in warning for warning in result.warnings)
    assert result.samples == 4 and not result.held_out
    assert not any(note.startswith("Outputs:") for note in quantized(fast=True).notes)


def test_a_language_model_that_diverges_on_random_tokens_is_refused() -> None:
    """One channel of the last norm is so loud that all others round to 0."""
    model = pre_norm(width=128)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, factor, loud in (("final.scale", 1, 5e3), ("final.added", 1, 5e3), ("head.weight", 8, 0)):
        values = factor * numpy_helper.to_array(stored[name])
        values[LOUD] *= loud
        stored[name].CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))
    with pytest.raises(
        ValueError, match=r"nats a token on 4 inputs of random numbers, above the limit of 0\.5"
    ):
        quantized(model=model, assignments=["move_outliers=false"])
    assert quantized(model=model, assignments=["move_outliers=false"], fast=True).model
