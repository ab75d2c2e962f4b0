"""Bug classes that users of converters to low precision have reported elsewhere, a test or more each.

All go through the command line, the full checker (in ``conversion.convert``) and ONNX Runtime.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.helpers import build, conversion, corpus
from tests.helpers.rounded import bf16, evaluate
from tools import convert_fp32_to_bf16

FORMS = ("with_cast", "bf16", "customqdq")
X = np.array([1.2345678, 0.3333333], np.float32)


def converted(text: str, folder: Path, form: str, *options: str) -> onnx.ModelProto:
    return conversion.convert(corpus.parse(text), folder, "--format", form, *options)


def run(form: str, model: onnx.ModelProto, feeds: dict) -> dict:
    return (conversion.run_wrapped if form == "bf16" else conversion.run)(model, feeds)


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_existing_cast_to_float(form: str, tmp_path: Path) -> None:
    """onnxconverter-common#320, #331: a Cast(to=FLOAT) that was not patched gave two types of one tensor."""
    text = "(int64[2] i, float[2] x) => (float[2] y) { f = Cast <to = 1> (i) y = Mul(f, x) }"
    feeds = {"i": np.array([3, 5]), "x": X}
    found = run(form, converted(text, tmp_path, form), feeds)["y"]
    assert np.allclose(found, feeds["i"] * X, rtol=2**-7)


@pytest.mark.parametrize("form", conversion.FORMATS)
@pytest.mark.parametrize("keep", ("--keep-io-types", "--no-keep-io-types"))
def test_casts_at_the_ends_are_topologically_sorted(form: str, keep: str, tmp_path: Path) -> None:
    """onnxconverter-common#208, #179: Casts were appended behind the nodes that read them."""
    model = conversion.convert(corpus.build("layers"), tmp_path, "--format", form, keep)
    known = {v.name for v in model.graph.input} | {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        assert known.issuperset(node.input), node
        known.update(node.output)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ("if", "nested if", "loop", "scan", "constants in branches"))
def test_subgraphs(form: str, name: str, tmp_path: Path) -> None:
    """onnxruntime#8488, #19418: bodies skipped, captured tensors of the wrong type, names defined twice."""
    model = conversion.convert(corpus.build(name), tmp_path, "--format", form)
    bodies = [
        attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g")
    ]
    inside = [node.op_type for body in bodies for node in body.node]
    kinds = [
        value.type.tensor_type.elem_type for body in bodies for value in (*body.value_info, *body.output)
    ]
    kinds += [tensor.data_type for body in bodies for tensor in body.initializer]
    assert TensorProto.BFLOAT16 in kinds or "Cast" in inside or "ExtendedQuantizeLinear" in inside


@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_every_kind(form: str, tmp_path: Path) -> None:
    """Model-Optimizer PR#302, PR#305, PR#1943: output also consumed, made by a Cast, equal to an input."""
    text = """(float[2] x, int64[2] i) => (float[2] x, float[2] a, float[2] c, float[2] y) {
        a = Sin(x) c = Cast <to = 1> (i) b = Mul(a, c) y = Relu(b) }"""
    feeds = {"x": X, "i": np.array([3, 5])}
    model = corpus.parse(text)
    found = run(form, conversion.convert(model, tmp_path, "--format", form, "--no-optimize"), feeds)
    assert conversion.same(found, evaluate(model, feeds))


def test_the_runtime_keeps_the_pairs(tmp_path: Path) -> None:
    """onnxruntime#9915, #8787, #17565: float -> low -> float was optimized away. At no level may it be."""
    model = converted("(float[2] x) => (float[2] y) { y = Neg(x) }", tmp_path, "with_cast")
    for level in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        assert np.array_equal(session.run(None, {"x": X})[0], -bf16(X))


def test_a_model_the_cpu_can_not_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """onnxruntime#13262, #26311, #28768: the user learned it from an error at session creation."""
    for form, words in (("bf16", "no"), ("with_cast", "yes"), ("customqdq", "yes"), ("simulate_bf16", "yes")):
        conversion.convert(build.dense(8), tmp_path, "--format", form)
        assert f"Runs on ONNX Runtime CPU: {words}" in capsys.readouterr().out


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_large_constants_in_attributes(form: str, tmp_path: Path) -> None:
    """onnxruntime#17944: a large tensor in a Constant node stayed in the file and beyond the 2 GiB limit."""
    array = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(array)),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    model = build.model(nodes, [build.value("x", [1, 256])], [build.value("y", [1, 256])])
    conversion.convert(model, tmp_path, "--format", form, "--save_as_external_data", "--no-functions")
    assert (tmp_path / "out.onnx").stat().st_size < 5_000
    width = 4 if form == "simulate_bf16" else 2
    (data,) = tmp_path.glob("out.onnx.*.data")
    assert data.stat().st_size == width * array.size


def test_the_input_is_not_changed(tmp_path: Path) -> None:
    """onnxruntime#23268: the caller's model was changed, its external weights deleted."""
    path = build.save_external(build.dense(256), tmp_path / "m.onnx", "m.weights")
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()}
    for form in conversion.FORMATS:
        target = tmp_path / f"{form}.onnx"
        assert (
            convert_fp32_to_bf16.main(["--input", str(path), "--output", str(target), "--format", form]) == 0
        )
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in before} == before


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_inputs_that_must_stay_float(form: str, tmp_path: Path) -> None:
    """onnxconverter-common#208, Model-Optimizer PR#436: scales of 1.7 rounded give another size of image."""
    text = """(float[1,1,64,64] x) => (float[A,B,C,D] y) <float[4] s = {1, 1, 1.703, 1.703}> {
        y = Resize <mode = "linear"> (x, , s) }"""
    feeds = {"x": np.ones((1, 1, 64, 64), np.float32)}
    assert bf16(np.float32(1.703)) != np.float32(1.703)
    found = run(form, converted(text, tmp_path, form), feeds)["y"]
    assert found.shape == (1, 1, 108, 108)


@pytest.mark.parametrize("form", FORMS)
def test_other_inputs_of_excluded_nodes(form: str, tmp_path: Path) -> None:
    """onnxconverter-common PR#326: int and double inputs of blocked nodes got Casts to float."""
    text = """(float[2] x, int64[2] i, double[2] d) => (float[2] y, double[2] e) {
        [kept1] a = Gather(x, i) [kept2] b = Cast <to = 11> (a) [kept3] e = Add(b, d) y = Sin(a) }"""
    feeds = {"x": X, "i": np.array([1, 0]), "d": np.array([1e-12, 2.0])}
    found = run(form, converted(text, tmp_path, form, "--exclude-node", "kept*"), feeds)
    assert found["e"].dtype == np.float64
    assert np.array_equal(found["e"], X[[1, 0]].astype(np.float64) + feeds["d"])


def test_models_of_mixed_types(tmp_path: Path) -> None:
    """Model-Optimizer PR#1946: a model that is float16 in part was refused or left with two types."""
    for name in ("half island", "half input", "half output"):
        for form in FORMS:
            model = conversion.convert(corpus.build(name), tmp_path, "--format", form)
            kinds = [v.type.tensor_type.elem_type for v in model.graph.value_info]
            assert TensorProto.FLOAT16 not in kinds


@pytest.mark.parametrize("form", conversion.FORMATS)
@pytest.mark.parametrize("name", ("empty", "zero size"))
def test_empty_tensors(form: str, name: str, tmp_path: Path) -> None:
    """Model-Optimizer PR#1626: tensors without elements crashed the search for their maximum."""
    model = corpus.build(name)
    feeds = corpus.feeds(model, size=2)
    found = run(form, conversion.convert(model, tmp_path, "--format", form), feeds)["y"]
    assert found.shape == conversion.run(model, feeds)["y"].shape


def test_optimization_is_near_and_can_be_left_out(tmp_path: Path) -> None:
    """OnnxSlim#277, #118: an optimizer changed numbers. Here the rest is exact, so it can be compared."""
    model = corpus.build("convolution")
    feeds = corpus.feeds(model, size=2)
    expected = conversion.run(model, feeds)["y"]
    for options in ((), ("--no-optimize",)):
        found = conversion.run(conversion.convert(model, tmp_path, *options), feeds)["y"]
        assert np.abs(found - expected).max() < 2**-6 * np.abs(expected).max()


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_models_with_operators_of_others(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """onnxruntime#10082, Model-Optimizer#2016: one custom operator and nothing could be done."""
    text = "(float[2] x) => (float[2] y) { [a] a = Sin(x) [odd] b = org.example.Odd(a) [c] y = Cos(b) }"
    model = corpus.parse(text, domains=', "org.example": 2')
    model.graph.value_info.append(build.value("b", [2]))
    result = conversion.convert(model, tmp_path, "--format", form)
    printed = capsys.readouterr().out
    assert "Not optimized: " in printed
    assert "Odd" in printed
    assert ("org.example", 2) in {(o.domain, o.version) for o in result.opset_import}
    (odd,) = [node for node in result.graph.node if node.op_type == "Odd"]
    assert (odd.name, odd.domain) == ("odd", "org.example")


def test_shapes_are_known_behind_our_operators(tmp_path: Path) -> None:
    """RyzenAI-SW#339: shape inference of a quantize operator aborted the process at session creation."""
    result = conversion.convert(corpus.build("layers"), tmp_path, "--format", "customqdq")
    known = {value.name for value in (*result.graph.value_info, *result.graph.output)}
    made = {name for node in result.graph.node if node.op_type.startswith("Extended") for name in node.output}
    assert made <= known
    feeds = corpus.feeds(corpus.build("layers"), size=5)
    assert conversion.run(result, feeds)["y"].shape == (5, 2)
