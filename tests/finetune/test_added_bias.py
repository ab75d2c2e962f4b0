"""Oracle: ONNX Runtime runs float and tuned models; the models are built here, and none has a bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from onnx import helper

from tests.finetune.test_finetune_weights import _squared
from tests.helpers import build, tunable
from tests.helpers.output_error import OutputError
from transforms import model_io
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.options import FinetuneOptions
from transforms.judge.sample_roles import is_held_out
from transforms.layers.match_layers import match_layers
from transforms.model import graph_proto


def _products(between: str, *, named: bool = True) -> onnx.ModelProto:
    """Return x [n, 5, 16] through three MatMuls without bias, with an operator between them, to y."""
    random = np.random.default_rng(9)
    names, nodes, weights = ["x", "h0", "h1"], [], {}
    for i in range(3):
        weights[f"w{i}"] = (random.standard_normal((16, 16)) * np.sqrt(2 / 16)).astype(np.float32)
        made = "y" if i == 2 else f"m{i}"
        nodes.append(helper.make_node("MatMul", [names[i], f"w{i}"], [made], f"product{i}" if named else ""))
        if i < 2:
            nodes.append(helper.make_node(between, [made], [names[i + 1]], f"between{i}" if named else ""))
    ends = build.value("x", ["n", 5, 16]), build.value("y", ["n", 5, 16])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


SIGMOID = _products("Sigmoid")
DATA, UNSEEN = tunable.samples(SIGMOID, 40), tunable.samples(SIGMOID, 80)[40:]


def _adds(graph: gs.Graph) -> list[gs.Node]:
    return [node for node in graph.nodes if node.op == "Add"]


def _bytes(graph: gs.Graph) -> bytes:
    return graph_proto.export_model(graph).SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", ["A8W8", "U8S8", "W4A8", "MX6", "BFP16"])
def test_products_whose_inputs_are_far_from_zero_get_a_bias(name: str) -> None:
    float_graph, quantized = tunable.pair(SIGMOID, name, DATA, saturation="ignore")
    done = finetune_model(float_graph, quantized, DATA)
    adds = _adds(done.graph)
    assert adds and not _adds(quantized)
    for node in adds:
        assert node.inputs[0].inputs[0].op == "MatMul" and isinstance(node.inputs[1], gs.Constant)
        assert len(node.inputs[0].outputs) == 1 and node.inputs[1].values.shape == (16,)
    errors = OutputError(float_graph, UNSEEN)
    assert 10 * np.log10(errors.each(quantized).relative / errors.each(done.graph).relative) > 1
    model = graph_proto.export_model(done.graph)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == ["y"]


def _left(columns: int) -> onnx.ModelProto:
    """Return a Gemm whose weight is its first input, of inputs that are far from zero."""
    weight = np.random.default_rng(4).standard_normal((16, 16)).astype(np.float32)
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["h"]),
        helper.make_node("Gemm", ["w", "h"], ["y"], transA=1),
    ]
    ends = build.value("x", [16, columns]), build.value("y", [16, columns])
    return build.model(nodes, [ends[0]], [ends[1]], {"w": weight})


@pytest.mark.parametrize("name", ["A8W8", "W4A8", "BFP16"])
@pytest.mark.parametrize("columns", [5, 16])
def test_a_weight_on_the_left_of_a_gemm_gets_a_column(name: str, columns: int) -> None:
    """In a row the numbers would not fit, or would be added to other results."""
    model = _left(columns)
    feeds = tunable.samples(model, 80)
    float_graph, quantized = tunable.pair(model, name, feeds[:40])
    done = finetune_model(float_graph, quantized, feeds[:40])
    gemm = next(node for node in done.graph.nodes if node.op == "Gemm")
    assert gemm.inputs[2].shape in ((16, 1), [16, 1])
    errors = OutputError(float_graph, feeds[40:])
    assert 10 * np.log10(errors.each(quantized).relative / errors.each(done.graph).relative) > 1
    onnx.checker.check_model(graph_proto.export_model(done.graph), full_check=True)


def test_a_column_is_tuned_again_with_its_scales_along_it() -> None:
    model = _left(16)
    feeds = tunable.samples(model, 80)
    float_graph, quantized = tunable.pair(model, "W4A8", feeds[:40], per_channel=True)
    tuned = finetune_model(float_graph, quantized, feeds[:40]).graph
    finetune_weights(float_graph, tuned, feeds[:40])
    back = next(node for node in tuned.nodes if node.op == "Gemm").inputs[2].inputs[0]
    assert back.inputs[0].shape == (16, 1) and back.inputs[1].shape == (16,) and back.attrs["axis"] == 0
    errors = OutputError(float_graph, feeds[40:])
    assert 10 * np.log10(errors.each(quantized).relative / errors.each(tuned).relative) > 1
    onnx.checker.check_model(graph_proto.export_model(tuned), full_check=True)


def test_runtime_loads_a_product_of_fixed_size_that_got_a_bias() -> None:
    """It makes a Gemm of them, and in opset 21 refuses the zero point that it moves before that."""
    model = onnx.ModelProto.FromString(SIGMOID.SerializeToString())
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    feeds = [{"x": np.concatenate([one["x"], one["x"]])} for one in DATA]
    float_graph, quantized = tunable.pair(model, "W4A8", feeds)
    assert quantized.opset == 21
    done = finetune_model(float_graph, quantized, feeds)
    assert _adds(done.graph)
    assert ort.InferenceSession(graph_proto.export_model(done.graph).SerializeToString())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", ["A8W8", "MX6"])
def test_tuning_again_finds_the_bias_and_adds_no_other(name: str, named: bool, tmp_path: Path) -> None:
    float_graph, quantized = tunable.pair(_products("Sigmoid", named=named), name, DATA, saturation="ignore")
    finetune_weights(float_graph, quantized, DATA)
    model_io.save(quantized, tmp_path / "tuned.onnx")
    again = model_io.load(tmp_path / "tuned.onnx")
    count = len(_adds(again))
    layers, left = match_layers(float_graph, again)
    assert len(layers) == 3 and not left and count
    found = [layer.bias for layer in layers if layer.bias is not None and layer.bias.stored is not None]
    assert len(found) == count
    assert [layer.target for layer in layers] == ["m0", "m1", "y"]
    done = finetune_weights(float_graph, again, DATA)
    assert all(layer.after <= layer.before for layer in done.layers)
    assert all(len(walked.inputs[0].inputs) == 1 for walked in _adds(again))
    assert not any(node.inputs[0].inputs[0].op == "Add" for node in _adds(again))


def test_an_add_that_brings_little_is_not_put_there() -> None:
    """Rows around zero: sums with a free bias are those without."""
    model = _products("Tanh")
    data = [{"x": np.random.default_rng(i).standard_normal((1, 5, 16)).astype(np.float32)} for i in range(60)]
    float_graph, quantized = tunable.pair(model, "A8W8", data)
    done = finetune_model(float_graph, quantized, data)
    assert not _adds(done.graph)


def test_models_of_a_float_type_get_no_sum_in_float32() -> None:
    float_graph, quantized = tunable.pair(SIGMOID, "BF16", DATA)
    assert all(layer.bias is None for layer in match_layers(float_graph, quantized)[0])
    finetune_weights(float_graph, quantized, DATA)
    assert not _adds(quantized)


def test_reported_errors_are_those_with_the_bias() -> None:
    float_graph, quantized = tunable.pair(SIGMOID, "MX6", DATA)
    reports = finetune_weights(float_graph, quantized, DATA).layers
    held = [feed for i, feed in enumerate(DATA) if is_held_out(i, len(DATA), FinetuneOptions().held_out)]
    names = [node.outputs[0].name for node in _adds(quantized)]
    by_name = {"m0": reports[0], "m1": reports[1], "y": reports[2]}
    assert names
    for name in names:
        assert np.isclose(_squared(float_graph, quantized, name, held), by_name[name].after, rtol=1e-3)


def test_a_judge_that_never_agrees_leaves_no_add() -> None:
    float_graph, quantized = tunable.pair(SIGMOID, "A8W8", DATA)
    before = _bytes(quantized)
    finetune_weights(float_graph, quantized, DATA, model_error=lambda: 1.0)
    assert _bytes(quantized) == before
