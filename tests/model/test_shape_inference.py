"""Operators that onnx infers nothing of. Oracle: the model rounded node by node; untyped is not rounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import conversion, corpus, rounded
from tools import convert_fp32_to_bf16, quantize
from transforms import model_io
from transforms.model import graph_proto
from transforms.model.shape_inference import all_sizes_known, infer_types

_MVN = "MeanVarianceNormalization <axes = [0, 2, 3]> (a)"


@pytest.mark.parametrize("op", ("GroupNormalization <num_groups = 1> (a, s, s)", _MVN))
def test_types_behind_functions_that_onnx_infers_nothing_of(op: str, tmp_path: Path) -> None:
    """Oracle: the model rounded node by node, for what has no type is not rounded."""
    body = f"{{ a = Tanh(x) g = {op} b = Exp(g) c = Sin(b) y = Transpose(c) }}"
    text = f"(float[1,2,3,3] x) => (float[A,B,C,D] y) <float[2] s = {{0.3, 1.7}}> {body}"
    model = corpus.parse(text, opset=21)
    types = {t.name: (t.dtype, t.shape) for n in model_io.load(model).nodes for t in n.outputs}
    assert types["g"] == types["b"] == (np.float32, [1, 2, 3, 3])
    feeds = corpus.feeds(model)
    converted = conversion.convert(model, tmp_path, "--no-optimize")
    assert conversion.same(conversion.run(converted, feeds), rounded.evaluate(model, feeds))


@pytest.mark.parametrize("op", ("LessOrEqual", "GreaterOrEqual"))
@pytest.mark.parametrize("opset", (13, 16))
def test_comparisons_that_are_functions_make_bool(op: str, opset: int) -> None:
    model = corpus.parse(
        f"(float[3] x) => (bool[N] y) {{ c = {op}(x, x) d = Not(c) y = Not(d) }}", opset=opset
    )
    types = {t.name: t.dtype for n in model_io.load(model).nodes for t in n.outputs}
    assert types["c"] == types["d"] == np.bool_


@pytest.mark.parametrize("name", corpus.MODELS)
def test_values_of_shapes_tell_nothing_where_all_sizes_are_known(name: str) -> None:
    """Oracle: inference that follows values."""
    model = corpus.build(name)
    plain = infer_types(model)
    followed = infer_types(model, data_prop=True)
    if all_sizes_known(plain.graph):
        assert plain.SerializeToString(deterministic=True) == followed.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("(float[2,3] x) => (float[2,3] y) { t = Neg(x) y = Tanh(t) }", True),
        ("(float[N,3] x) => (float[N,3] y) { t = Neg(x) y = Tanh(t) }", False),
        ("(float[2,3] x) => (float[A,B] y) { s = Shape(x) t = Identity(s) y = Reshape(x, t) }", False),
        ("(float[2] x) => (float[2] y) { t = other.Unknown(x) y = Tanh(x) }", False),
    ],
)
def test_whether_all_sizes_are_known(text: str, known: bool) -> None:
    model = corpus.parse(text, domains=', "other" : 1' if "other" in text else "")
    assert all_sizes_known(infer_types(model).graph) == known


OUTPUT = "(float[1, 3, 8, 8] x) => (float[{}] y) {{ y = Relu(x) }}"
INNER = "(float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) <float[{}] a> {{ a = Relu(x) y = Neg(a) }}"
BODY = """(float[1, 3, 8, 8] x, bool c) => (float[1, 3, 8, 8] y) {{
    y = If (c) <then_branch = t () => (float[{}] p) {{ p = Neg(x) }},
                else_branch = e () => (float[1, 3, 8, 8] q) {{ q = Relu(x) }}> }}"""
HEAD = '<ir_version: 8, opset_import: ["": 17, "own": 1]> main '
WRONG = ("1, 4, 8, 8", "1, 3, 64", "N, 3, 8, 9")


@pytest.mark.parametrize("shape", WRONG)
@pytest.mark.parametrize("text", (OUTPUT, INNER, BODY))
def test_a_wrong_shape_is_mended_with_a_word(text: str, shape: str) -> None:
    graph = model_io.load(onnx.parser.parse_model(HEAD + text.format(shape)))
    (note,) = graph.info.notes
    assert f"[{shape}]" in note and "[1, 3, 8, 8]" in note
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32), "c": np.array(True)}
    names = [value.name for value in model.graph.input]
    assert conversion.run(model, {name: feeds[name] for name in names})["y"].shape == (1, 3, 8, 8)


@pytest.mark.parametrize("shape", ("1, 3, 8, 8", "N, C, 8, 8", "N, 3, H, W"))
def test_a_right_shape_stays_as_declared(shape: str) -> None:
    graph = model_io.load(onnx.parser.parse_model(HEAD + OUTPUT.format(shape)))
    assert graph.info.notes == []
    (output,) = graph_proto.export_model(graph).graph.output
    dims = [d.dim_param or d.dim_value for d in output.type.tensor_type.shape.dim]
    assert [str(dim) for dim in dims] == shape.split(", ")


def test_what_another_domain_makes_is_believed() -> None:
    """Nothing is inferred of such an operator, so that what follows from its declared shape stays known."""
    text = "(float[2, 3] x) => (float[2, 5] y) <float[2, 5] a> { a = own.Op(x) y = Relu(a) }"
    assert model_io.load(onnx.parser.parse_model(HEAD + text)).info.notes == []


def test_a_size_of_minus_one_is_an_unknown_one() -> None:
    """Inference would make 4 rows of a padded convolution of -1, and the model's Shape -1."""
    text = """(float[2, 3, 6, 6] x, float[4, 3, 1, 1] w) => (float[2, 4, N, M] y, int64[4] s)
        <float[2, 4, 9, 9] a> { a = Conv <pads = [2, 2, 2, 2]> (x, w) y = Relu(a) s = Shape(x) }"""
    model = onnx.parser.parse_model(HEAD + text)
    for value in (*model.graph.input[:1], *model.graph.output[:1], *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            size.dim_value = -1
    graph = model_io.load(model)
    assert graph.info.notes == []
    assert graph.inputs[0].shape == [None] * 4
    assert all(isinstance(t.shape[2], str | None) for node in graph.nodes[:2] for t in node.outputs)
    feeds = {"x": np.ones((2, 3, 6, 6), np.float32), "w": np.ones((4, 3, 1, 1), np.float32)}
    found = conversion.run(graph_proto.export_model(graph), feeds)
    assert found["y"].shape == (2, 4, 10, 10) and found["s"].tolist() == [2, 3, 6, 6]


@pytest.mark.parametrize(
    ("tool", "options"), ((quantize, ("--config", "BF16")), (convert_fp32_to_bf16, ("--format", "with_cast")))
)
def test_the_tools_say_so(
    tool: object, options: tuple, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + OUTPUT.format(WRONG[0])), source)
    arguments = ["--input", str(source), "--output", str(target), *options]
    assert tool.main(arguments) == 0  # type: ignore[attr-defined]
    out = capsys.readouterr().out
    assert "The declared shape of 'y' was wrong: [1, 4, 8, 8], its node makes [1, 3, 8, 8]\n" in out
    onnx.checker.check_model(str(target), full_check=True)


LATE = """<ir_version: 8, opset_import: ["": 12]> main (float[N, M, 8] x) => (float[1, L] y)
    <int64[1] last = {-1}, int64 first = {0}, int64 second = {1}, float[8, 4] w = {WEIGHTS}> {
        shape = Shape(x)
        n = Gather <axis = 0> (shape, first)
        m = Gather <axis = 0> (shape, second)
        ns = Unsqueeze <axes = [0]> (n)
        ms = Unsqueeze <axes = [0]> (m)
        made = Concat <axis = 0> (ns, ms, last)
        product = MatMul(x, w)
        y = Reshape(product, made) }""".replace("WEIGHTS", ", ".join(["0.5", "-1.0"] * 16))


@pytest.mark.parametrize(
    ("tool", "options"),
    ((quantize, ("--config", "W8", "--opset", "21")), (convert_fp32_to_bf16, ("--format", "bf16"))),
)
def test_a_shape_that_a_later_opset_tells_to_be_wrong(
    tool: object, options: tuple, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    model = onnx.parser.parse_model(LATE)
    onnx.checker.check_model(model, full_check=True)  # opset 12 tells nothing of it
    onnx.save(model, source)
    assert model_io.load(source).info.notes == []
    arguments = ["--input", str(source), "--output", str(target), *options]
    assert tool.main(arguments) == 0  # type: ignore[attr-defined]
    assert "The declared shape of 'y' was wrong: [1, L], its node makes [" in capsys.readouterr().out
    onnx.checker.check_model(str(target), full_check=True)
