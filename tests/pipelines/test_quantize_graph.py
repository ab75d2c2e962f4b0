"""Oracles: the float model, the conversions to BF16, the same model quantized in another way."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray
from onnx import helper

import ops
from tests.helpers import build, conversion, corpus, plans
from tests.helpers.quantization import EXTENDED, node, on_grid, ops_used, random, source, stored
from tests.helpers.spread import spread
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError
from transforms.conversion.record import Record
from transforms.graph import dtypes
from transforms.insert_cast import insert_cast
from transforms.model import graph_proto
from transforms.model.read_model import ModelError
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import Scheme, preset
from transforms.scheme.presets import PLAIN

EXAMPLES = Path(__file__).parents[1] / "examples"
UNQUANTIZED = [name for name in corpus.MODELS if name != "quantized"]

Feeds = list[dict[str, NDArray]]


def quantize(
    model: onnx.ModelProto, chosen: str | Scheme, feeds: Feeds | None = None
) -> tuple[onnx.ModelProto, Record]:
    """Return the quantized model and what was done; it passes the full checker, the source is unchanged."""
    before = model.SerializeToString(deterministic=True)
    graph = model_io.load(model)
    data = None if feeds is None else CalibrationData(feeds)
    done = quantize_graph(graph, preset(chosen) if isinstance(chosen, str) else chosen, data)
    result = graph_proto.export_model(graph)
    onnx.checker.check_model(result, full_check=True)
    assert model.SerializeToString(deterministic=True) == before
    return result, done


def is_finite(value: object) -> bool:
    if isinstance(value, list):
        return all(map(is_finite, value))
    array = np.asarray(value)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


@cache
def digits() -> tuple[onnx.ModelProto, NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
    """Return the example, its images and labels, and what the float model says of them."""
    model = onnx.load(EXAMPLES / "digits.onnx")
    images, labels = (np.load(EXAMPLES / f"digits_test_{part}.npy") for part in ("images", "labels"))
    return model, images, labels, conversion.run(model, {"images": images})["logits"]


def batches(count: int = 8) -> Feeds:
    return [{"images": digits()[1][i : i + 8]} for i in range(0, 8 * count, 8)]


def snr_db(exact: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(np.square(exact).sum() / np.square(exact - found).sum()))


# Every preset on every model


@pytest.mark.parametrize(("name", "chosen"), spread(UNQUANTIZED, PLAIN, of=13))
def test_every_preset_gives_a_model_that_runs(name: str, chosen: str) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model)
    exact = conversion.run(model, feeds)
    result, done = quantize(model, preset(chosen).by_rule(), [feeds])  # one sample decides nothing
    found = conversion.run(result, feeds)
    assert found.keys() == exact.keys()
    for output, value in exact.items():
        assert is_finite(found[output]) or not is_finite(value), output
    again = model_io.load(result)
    if done.count and any(n.domain or "Linear" in n.op_type for n in result.graph.node):
        with pytest.raises(ModelError, match=r"^the model is quantized already: '"):
            quantize_graph(again, preset(chosen), CalibrationData([feeds]))


# (dB on all images, share of digits read right); the float model reads 0.983
EXPECTED = {
    "XINT8": (22, 0.975),
    "A8W8": (26, 0.975), "A16W8": (44, 0.98), "U8S8": (33, 0.975), "U16S8": (44, 0.98), "W4A8": (19, 0.97),
    "A8W8_DYNAMIC": (35, 0.975), "W8": (40, 0.98), "W4": (19, 0.97), "W4_MIXED": (19, 0.97), "W2": (5, 0.9),
    "FP16": (65, 0.98), "BF16": (49, 0.98), "BFP16": (42, 0.975), "MX4": (9, 0.96), "MX6": (26, 0.975),
    "MX9": (45, 0.975), "MXINT8": (41, 0.975), "MXFP8E4M3": (24, 0.975), "MXFP8E5M2": (18, 0.97),
    "MXFP6E3M2": (18, 0.97), "MXFP6E2M3": (29, 0.975), "MXFP4E2M1": (12, 0.96), "BF16_BFP16": (43, 0.975),
    "BF16_MXINT8": (42, 0.975), "INT32": (110, 0.98), "UINT32": (110, 0.98),
}  # fmt: skip


@pytest.mark.parametrize("name", spread([name for name in PLAIN if name in EXPECTED], of=2))
def test_every_preset_reads_digits(name: str) -> None:
    model, images, labels, exact = digits()
    result, done = quantize(model, name, batches())
    found = conversion.run(result, {"images": images})["logits"]
    least, share = EXPECTED[name]
    assert snr_db(exact, found) > least
    assert (found.argmax(1) == labels).mean() >= share
    kind, few = preset(name).weight, ("int8", "uint8") if preset(name).finer_share else ()
    kinds = {kind, f"u{kind}", *few}  # some weights of W4 have zero points, those of A8W8 must not saturate
    assert sum(done.tensors[one, "weight"] for one in kinds) == (2 if preset(name).dynamic else 3)


def test_every_preset_has_figures() -> None:
    """Weights of a trained model are on no grid."""
    assert {*PLAIN} - {*EXPECTED} == {"FOUND"}


# The same numbers in other ways


@pytest.mark.parametrize("name", spread(UNQUANTIZED, of=3))
def test_bfloat16_has_the_numbers_of_the_conversion_to_bf16(name: str, tmp_path: Path) -> None:
    model = corpus.build(name)
    result, done = quantize(model, "BF16")
    if done.count:
        expected = conversion.convert(model, tmp_path, "--format", "customqdq")
        feeds = corpus.feeds(model)
        assert conversion.same(conversion.run(result, feeds), conversion.run(expected, feeds))
        return
    assert conversion.same(*(conversion.run(one, corpus.feeds(model)) for one in (result, model)))


@pytest.mark.parametrize("name", ("layers", "convolution", "if", "loop", "lstm", "constants"))
def test_bfloat16_as_casts(name: str) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model)
    pairs, _ = quantize(model, "BF16")
    casts, done = quantize(model, preset("BF16").with_(bfloat16_as="cast"))
    assert {one.domain for one in casts.opset_import} == {""}
    assert done.count and not {one.op_type for one in casts.graph.node} & {*EXTENDED}
    assert conversion.same(conversion.run(casts, feeds), conversion.run(pairs, feeds))
    with pytest.raises(ModelError, match=r"^the model is quantized already"):
        quantize_graph(model_io.load(with_casts(model)), preset("A8W8"))


def with_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with Casts to BF16 in all places."""
    graph = model_io.load(model)
    insert_cast(graph)
    return graph_proto.export_model(graph)


@pytest.mark.parametrize(
    "name", ("A8W8", "XINT8", "U16S8", "W4A8", "BF16", "MX6", "MXFP6E2M3", "BF16_MXINT8")
)
def test_nodes_on_weights_change_nothing(name: str) -> None:
    model, images, _, _ = digits()
    # Scales by output error follow the order of sums.
    scheme = preset(name).with_(fit_weights=False, saturation="ignore")
    lean, _ = quantize(model, scheme, batches())
    full, _ = quantize(model, scheme.with_(keep_weight_nodes=True), batches())
    feeds = {"images": images[:16]}
    # The runtime adds up what a constant makes and what a node makes in another order.
    assert snr_db(*(conversion.run(one, feeds)["logits"] for one in (lean, full))) > 110
    assert len(full.graph.node) >= len(lean.graph.node) + 3
    assert stored(full)["conv2.weight"].dtype == np.float32
    assert np.array_equal(stored(full)["conv2.weight"], stored(model)["conv2.weight"])


def test_stored_blocks_are_the_only_change_of_a_weight() -> None:
    """Equalization and balance leave this model alone, so weights keep name, shape and place."""
    model, _, _, _ = digits()
    result, _ = quantize(model, "MX9")
    for name in ("conv2.weight", "classifier.weight"):
        expected = ops.quantize_dequantize(stored(model)[name], "mx9", 1)
        assert np.array_equal(stored(result)[name], expected)
        assert any(name in one.input and one.op_type in ("Conv", "Gemm") for one in result.graph.node)


@pytest.mark.parametrize("name", ("A8W8", "XINT8", "MX9", "BF16", "FP16"))
def test_float16_models_keep_their_ends(name: str) -> None:
    model = build.dense(dtype=np.float16, layers=2)
    x = random(4, 16).astype(np.float16)
    result, done = quantize(model, name, [{"x": x}])
    assert done.count
    elements = [v.type.tensor_type.elem_type for v in (*result.graph.input, *result.graph.output)]
    assert elements == [onnx.TensorProto.FLOAT16] * 2
    exact, found = (conversion.run(one, {"x": x})["y"].astype(np.float32) for one in (model, result))
    assert snr_db(exact, found) > 25


def test_the_result_is_the_same_each_time() -> None:
    model = corpus.build("layers")
    for name in ("A8W8", "XINT8", "MX9", "BF16"):
        results = [quantize(model, name, [corpus.feeds(model)])[0] for _ in range(2)]
        assert len({result.SerializeToString(deterministic=True) for result in results}) == 1


# What is said


def test_what_was_done_is_counted() -> None:
    model, _, _, _ = digits()
    result, done = quantize(model, preset("A8W8").by_rule(), batches())
    weights = {("uint8", "weight"): 2, ("int8", "weight"): 1}  # the first and the last layer are widened
    assert dict(done.tensors) == {("int8", "activation"): 6, ("int32", "bias"): 3, **weights}
    assert done.count == 12 and done.notes == []
    assert done.calibrated == 6  # ranges of 4, what is moved has theirs; moments of 3 inputs of layers
    plain = preset("A8W8").by_rule().with_(weight_method="MinMax", correct_biases=False)
    assert quantize(model, plain, batches())[1].calibrated == 4
    assert sum("Linear" in one.op_type for one in result.graph.node) == 2 * 6 + 6


def test_what_needs_no_ranges_reads_no_data() -> None:
    model, _, _, _ = digits()
    for name in ("FP16", "BF16", "MX9", "BF16_BFP16"):
        for feeds, notes in ((None, 0), ([{"wrong": np.zeros(3)}], 1)):
            _, done = quantize(model, preset(name).with_(keep_float=False), feeds)
            assert len(done.notes) == notes and done.calibrated == 0
    assert done.notes == ["No ranges measured: the formats of this scheme need none"]


def test_missing_data_are_an_error() -> None:
    model, _, _, _ = digits()
    message = r"^4 tensors need ranges, 'images' the first, and there are no calibration data$"
    with pytest.raises(MissingDataError, match=message):
        quantize(model, preset("A8W8").with_(weight_method="MinMax", correct_biases=False))
    with pytest.raises(MissingDataError, match=r"^3 tensors need ranges"):
        quantize(model, Scheme("float32", "int8", weight_method="WeightedMSE"))
    _, done = quantize(model, Scheme("float32", "int8"))
    assert dict(done.tensors) == {("int8", "weight"): 3}


def test_layers_in_bodies_stay_float_with_a_word() -> None:
    text = """(float[2,8] x, bool c) => (float[2,8] y) { a = MatMul(x, w)
        y = If (c) <then_branch = t () => (float[2,8] p) { p = MatMul(a, v) },
                    else_branch = e () => (float[2,8] q) { q = Neg(a) }> }"""
    model = plans.model(text, {"v": (8, 8), "w": (8, 8)})
    feeds = {"x": random(2, 8), "c": np.array(True)}
    _, done = quantize(model, "A8W8", [feeds])
    assert done.notes == ["Kept in float inside If, Loop or Scan: 1 layer, ranges are not measured there"]
    result, done = quantize(model, "MX9")
    assert done.notes == [] and done.tensors["mx9", "weight"] == 2
    assert snr_db(*(conversion.run(one, feeds)["y"] for one in (model, result))) > 35


def test_transforms_that_a_scheme_names_are_run() -> None:
    text = """(float[2,3,6,6] x) => (float[2,8,4,4] y) { c = Conv(x, k, b) r = Relu(c)
        d = Conv(x, m) s = Relu(d) t = Concat <axis = 1> (r, s) y = Conv(t, o) }"""
    weights: plans.Weights = {"k": (4, 3, 3, 3), "b": (4,), "m": (4, 3, 3, 3), "o": (8, 8, 1, 1)}
    model = plans.model(text, weights)
    feeds = [{"x": random(2, 3, 6, 6)}]
    exact = conversion.run(model, feeds[0])["y"]
    plain = Scheme("uint8", "int8")
    concats, relus = "Concats on one scale", "Relus and Clips folded into quantizations"
    twice = "tensors quantized twice, at borders of formats"
    for changes, what, count in (
        ({"align_concat": True}, concats, 1),
        ({"fold_relu": True}, relus, 2),
        ({"equalize_layers": True}, "pairs of layers equalized", None),
        ({"balance_channels": True}, "layers balanced by a Mul in front", None),
        ({"other": "bfloat16", "dual_quant_nodes": True}, twice, None),
    ):
        assert what not in quantize(model, plain, feeds)[1].changes
        result, done = quantize(model, plain.with_(**changes), feeds)
        assert what in done.changes and count in (None, done.changes[what])
        assert snr_db(exact, conversion.run(result, feeds[0])["y"]) > 28
        assert any(one.op_type == "Relu" for one in result.graph.node) is (what != relus)


def test_weights_in_constant_nodes_are_weights() -> None:
    constant = helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(random(4, 6)))
    product = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    model = build.model([constant, product], [build.value("x", [2, 4])], [build.value("y", [2, 6])])
    for name in ("A8W8", "XINT8", "MX9"):
        result, done = quantize(model, preset(name).with_(optimize=False), [{"x": random(2, 4)}])
        assert done.tensors[preset(name).weight, "weight"] == 1
        assert not any(one.op_type == "Constant" for one in result.graph.node)


def test_weights_beyond_bfloat16_saturate() -> None:
    text = "(float[2,4] x) => (float[2,4] y) { y = Add(x, w) }"
    model = plans.model(text, {"w": np.array([1, -3.4e38, 3.4e38, 2], np.float32)})
    result, done = quantize(model, "BF16")
    assert done.changes["weights saturated at +-3.38953139e38"] == 1
    assert np.isfinite(conversion.run(result, {"x": np.zeros((2, 4), np.float32)})["y"]).all()


@pytest.mark.parametrize(
    ("name", "count"), (("A16W8", 1), ("U16S8", 1), ("A8W8", 0), ("MX9", 0), ("W4A8", 0))
)
def test_outliers_of_weights_move_to_activations_of_16_bits(name: str, count: int) -> None:
    w = random(4, 16)
    w[2] *= 100
    model = plans.model("(float[2,4] x) => (float[2,16] y) { y = MatMul(x, w) }", {"w": w})
    result, done = quantize(model, preset(name).with_(balance_channels=True), [{"x": random(2, 4)}])
    assert done.changes["layers balanced by a Mul in front"] == count
    assert sum(one.op_type == "Mul" for one in result.graph.node) == count


@pytest.mark.parametrize(("name", "count"), (("MX9", 1), ("BFP16", 1), ("BF16_BFP16", 1), ("A16W8", 0)))
def test_depthwise_layers_are_balanced_for_blocks(name: str, count: int) -> None:
    k = random(8, 1, 3, 3) * (4.0 ** np.arange(8)).astype(np.float32).reshape(8, 1, 1, 1)
    text = "(float[2,8,5,5] x) => (float[2,8,3,3] y) { y = Conv <group = 8> (x, k) }"
    chosen = preset(name).with_(balance_channels=True, equalize_layers=False)
    _, done = quantize(plans.model(text, {"k": k}), chosen, [{"x": random(2, 8, 5, 5)}])
    assert done.changes["layers balanced by a Mul in front"] == count


# Names of the original model


def test_formats_of_layers_and_tensors() -> None:
    model, images, _, exact = digits()
    chosen = preset("A8W8").with_(
        layers={"conv2": "mx9", "Gemm": {"weight": "int4", "per_channel": True}},
        tensors={"images": "bfloat16"},
        exclude_op_types=("MaxPool",),
    )
    result, _ = quantize(model, chosen, batches())
    layers = {one.name: one for one in result.graph.node}
    assert source(result, layers["conv1"], 0).op_type == EXTENDED[1]
    assert source(result, layers["conv2"], 0).op_type == ops.FORMATS["mx9"].op
    weight = source(result, layers["classifier"], 1)
    assert stored(result)[weight.input[0]].dtype.name == "int4"
    assert stored(result)[weight.input[1]].shape == (10,)
    assert source(result, layers["pool1"], 0).op_type == "Relu"
    assert snr_db(exact, conversion.run(result, {"images": images})["logits"]) > 18


@pytest.mark.parametrize("name", ("conv1.weight", "conv1_out", "norm1_out", "relu1_out", "logits"))
def test_every_tensor_can_be_named_or_the_error_says_why_not(name: str) -> None:
    """conv1 and the normalization behind it become one Conv, with another weight in the same place."""
    model, _, _, _ = digits()
    chosen = preset("BFP16").with_(tensors={name: "float16"})
    if name == "conv1_out":
        with pytest.raises(ValueError, match=r"^tensors entry 'conv1_out'.* gone after optimization"):
            quantize(model, chosen)
        quantize(model, chosen.with_(optimize=False))
        return
    result, done = quantize(model, chosen)
    assert sum(count for (format, _), count in done.tensors.items() if format == "float16") == 1
    assert sum(one.op_type == EXTENDED[1] for one in result.graph.node) == 1


@pytest.mark.parametrize("name", ("conv1", "conv2", "classifier"))
def test_layers_by_name(name: str) -> None:
    model, _, _, _ = digits()
    whole = preset("A8W8").with_(saturation="ignore")
    everything = quantize(model, whole, batches(1))[1].tensors
    kept = quantize(model, whole.with_(layers={name: "float32"}), batches(1))[1].tensors
    assert kept["int8", "weight"] == everything["int8", "weight"] - 1
    result, _ = quantize(model, preset("MX9").with_(layers={name: "mxint8"}))
    layer = next(one for one in result.graph.node if one.name == name)
    assert source(result, layer, 0).op_type == ops.FORMATS["mxint8"].op
    assert sum(one.op_type == ops.FORMATS["mxint8"].op for one in result.graph.node) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    (
        ("norm1", "layers entry 'norm1': the node is gone after optimization"),
        ("relu1", "layers entry 'relu1': no input of Relu can take mxint8"),
        ("pool1", "layers entry 'pool1': no input of MaxPool can take mxint8"),
        ("flatten", "layers entry 'flatten': no input of Flatten can take mxint8"),
    ),
)
def test_layers_that_can_not_be_blocks_or_are_no_more(name: str, message: str) -> None:
    model, _, _, _ = digits()
    with pytest.raises(ValueError) as caught:
        quantize(model, preset("MX9").with_(layers={name: "mxint8"}))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        (
            {"layers": {"nothing*": "int8"}},
            "layers entry 'nothing*' matches no node name and no operator type",
        ),
        ({"tensors": {"nothing": "int8"}}, "tensors entry 'nothing' is not a tensor of the model"),
        ({"exclude_nodes": ("nothing",)}, "no node name matches 'nothing'"),
        ({"exclude_op_types": ("Softmax",)}, "no node has operator type 'Softmax'; the model has"),
        ({"layers": {"MaxPool": "mx9"}}, "layers entry 'MaxPool': no input of MaxPool can take mx9 there"),
    ),
)
def test_names_that_are_not_there(changes: dict, message: str) -> None:
    model, _, _, _ = digits()
    with pytest.raises(ValueError) as caught:
        quantize(model, preset("A8W8").with_(**changes), batches(1))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


# Models that are refused


def test_nan_in_weights() -> None:
    model = corpus.build("layers")
    weight = next(t for t in model.graph.initializer if t.name == "w0")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full((4, 64), np.nan, np.float32), "w0"))
    for name in ("A8W8", "XINT8", "MX9", "BF16", "FP16"):
        with pytest.raises(ValueError, match=r"^NaN in 1 weights, 'w0' the first: no format"):
            quantize(model, name, [corpus.feeds(model)])


def test_models_that_are_quantized_already() -> None:
    with pytest.raises(ModelError, match=r"^the model is quantized already: 'd' is a DequantizeLinear node$"):
        quantize(corpus.build("quantized"), "MX9")
    model = corpus.build("layers")
    for name in ("A8W8", "XINT8", "MX9", "BF16", "INT32"):
        result, _ = quantize(model, name, [corpus.feeds(model)])
        with pytest.raises(ModelError, match=r"^the model is quantized already: '[^']+' is a "):
            quantize(result, name, [corpus.feeds(model)])
    marked = corpus.build("layers")
    helper.set_model_props(marked, {"onnx_narrow.tool": "quantize"})
    with pytest.raises(ModelError, match=r"^the model is quantized already: tools\.quantize made it$"):
        quantize(marked, "MX9")


def test_what_no_sample_reaches_has_no_range() -> None:
    model = plans.model("(float[N,4] x) => (float[N,6] y) { y = MatMul(x, w) }", {"w": (4, 6)})
    feeds: Feeds = [{"x": np.zeros((0, 4), np.float32)}]
    with pytest.raises(ValueError, match=r"^tensor 'x' has no range: it had no elements in any sample$"):
        quantize(model, preset("A8W8"), feeds)


def test_nothing_to_quantize() -> None:
    result, done = quantize(corpus.build("integers"), "A8W8")
    assert done.count == 0 and not any("Linear" in one.op_type for one in result.graph.node)


# Opsets


@pytest.mark.parametrize(
    ("name", "expected"), (("A8W8", 13), ("XINT8", 13), ("MX9", 13), ("A16W8", 21), ("W4A8", 21))
)
def test_opset_and_ir_version_of_the_result(name: str, expected: int) -> None:
    model = build.dense(layers=2, opset=9)
    model.ir_version = 4
    feeds = {"x": random(4, 16)}
    result, _ = quantize(model, name, [feeds])
    assert result.opset_import[0].version == expected
    assert result.ir_version >= (10 if expected == 21 else 7)
    exact, found = (conversion.run(one, feeds)["y"] for one in (model, result))
    assert snr_db(exact, found) > 12


def test_integers_of_a_tensor_lie_on_one_grid() -> None:
    """The output of the model is what its last scale can stand for."""
    model, images, _, _ = digits()
    result, _ = quantize(model, preset("A8W8").with_(keep_float=False), batches())
    last = node(result, "logits")
    scale = stored(result)[last.input[1]]
    found = conversion.run(result, {"images": images})["logits"]
    assert np.array_equal(on_grid(found, scale), found) and len(np.unique(found)) > 50
    assert {op for _, op in ops_used(result)} >= {"QuantizeLinear", "DequantizeLinear", "Conv", "Gemm"}
    assert all(dtypes.is_type(t, dtypes.FLOAT) for t in gs.import_onnx(result).outputs)


def test_fine_tuning_is_a_step_of_its_own() -> None:
    graph = graph_proto.import_model(build.dense())
    with pytest.raises(ValueError, match="fine-tuning, which is a step of its own"):
        quantize_graph(graph, preset("MX9_ADAQUANT"))


@pytest.mark.parametrize("preset_name", ("BF16", "MX9", "A8W8", "XINT8"))
def test_a_weight_that_a_body_hands_out_keeps_its_numbers(preset_name: str) -> None:
    """Oracle: the float model, of which ``steps`` is a copy of the weight for every round."""
    model = corpus.parse(
        """(float[2,4] x, int64 n) => (float[2,4] y, float[K,4,4] steps) <bool on = {1}> {
        y, steps = Loop (n, on, x) <body = b (int64 i, bool go, float[2,4] s)
            => (bool more, float[2,4] r, float[4,4] k) <float[4,4] k = {1, 2, 3, 4, 5, 6, 7, 8, 9,
            10, 11, 12, 13, 14, 15, 16}> { more = Identity(go) p = MatMul(s, k) r = Tanh(p) }> }"""
    )
    feeds = {"x": np.ones((2, 4), np.float32), "n": np.array(2)}
    quantized, _ = quantize(model, preset_name, [feeds])
    steps = conversion.run(quantized, feeds)["steps"]
    assert np.array_equal(steps, conversion.run(model, feeds)["steps"])
