"""Models and uses that the system this project replaces gets wrong, silently: each has to be right here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.helpers import build, conversion, corpus
from tests.helpers.rounded import evaluate
from tools import convert_fp16_to_bf16, convert_fp32_to_bf16

FORMS = ("with_cast", "bf16", "customqdq")
every_format = pytest.mark.parametrize("form", conversion.FORMATS)


def run(form: str, model: onnx.ModelProto, feeds: dict) -> dict:
    return (conversion.run_wrapped if form == "bf16" else conversion.run)(model, feeds)


@every_format
def test_an_input_used_twice_gets_one_pair(form: str, tmp_path: Path) -> None:
    model = conversion.convert(corpus.build("input twice"), tmp_path, "--format", form)
    names = [name for node in model.graph.node for name in node.output]
    assert len(names) == len(set(names))
    readers = [node.op_type for node in model.graph.node if "x" in node.input]
    assert len(readers) == 1


@every_format
@pytest.mark.parametrize("opset", (7, 9, 11, 12))
def test_opset_below_13_is_raised_first(form: str, opset: int, tmp_path: Path) -> None:
    model = conversion.convert(build.dense(8, opset=opset), tmp_path, "--format", form)
    assert model.opset_import[0].version == (22 if form == "bf16" else 13)


@every_format
def test_half_weights_in_a_float_graph(form: str, tmp_path: Path) -> None:
    text = "(float[2] x) => (float[2] y) { w = Cast <to = 1> (half_w) a = Mul(x, w) y = Sin(a) }"
    model = corpus.parse(text)
    feeds = {"x": np.array([1.5, -2], np.float32)}
    found = run(form, conversion.convert(model, tmp_path, "--format", form), feeds)["y"]
    assert np.allclose(found, conversion.run(model, feeds)["y"], rtol=2**-6)


@every_format
@pytest.mark.parametrize("tool", (convert_fp32_to_bf16, convert_fp16_to_bf16))
def test_double_tensors_are_untouched(form: str, tool: object, tmp_path: Path) -> None:
    dtype = "float" if tool is convert_fp32_to_bf16 else "float16"
    text = f"""(double[2] d, {dtype}[2] x) => (double[2] e, {dtype}[2] y) <double[2] w = {{0.1, 0.2}}> {{
        e = Mul(d, w) y = Neg(x) }}"""
    name = str(tool.__name__).removeprefix("tools.")
    result = conversion.convert(corpus.parse(text), tmp_path, "--format", form, tool=name)
    stored = {t.name: numpy_helper.to_array(t) for t in result.graph.initializer}
    assert stored["w"].tobytes() == np.array([0.1, 0.2]).tobytes()
    (product,) = [node for node in result.graph.node if node.op_type == "Mul"]
    assert list(product.input) == ["d", "w"]


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_of_relu_only(form: str, tmp_path: Path) -> None:
    model = corpus.build("relu only")
    feeds = {"x": np.array([1.2345678, -1], np.float32)}
    assert conversion.same(
        run(form, conversion.convert(model, tmp_path, "--format", form), feeds), evaluate(model, feeds)
    )


@pytest.mark.parametrize("form", FORMS)
def test_embedding_tables_are_stored_rounded(form: str, tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((500, 64)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"])]
    model = build.model(
        nodes, [build.value("i", [3], np.int64)], [build.value("y", [3, 64])], {"table": table}
    )
    result = conversion.convert(model, tmp_path, "--format", form)
    assert {t.name: t.data_type for t in result.graph.initializer}["table"] == TensorProto.BFLOAT16
    feeds = {"i": np.array([0, 499, 7])}
    assert conversion.same(run(form, result, feeds), evaluate(model, feeds))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ("clip", "constants"))
def test_constant_kinds_and_clip_with_empty_min(form: str, name: str, tmp_path: Path) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model, size=2)
    result = conversion.convert(model, tmp_path, "--format", form, "--no-optimize")
    assert conversion.same(run(form, result, feeds), evaluate(model, feeds))


@every_format
def test_initializers_that_are_inputs(form: str, tmp_path: Path) -> None:
    model = build.dense(8, opset=8)
    model.graph.input.append(build.value("weight0", [8, 8]))
    model.ir_version = 3
    result = conversion.convert(model, tmp_path, "--format", form)
    assert [value.name for value in result.graph.input] == ["x"]
    assert [t.name for t in result.graph.initializer if list(t.dims) == [8, 8]] == ["weight0"]


@every_format
def test_if_stays_behind_the_producers_of_what_it_captures(form: str, tmp_path: Path) -> None:
    model = corpus.build("if")
    result = conversion.convert(model, tmp_path, "--format", form)
    made: set[str] = {v.name for v in result.graph.input} | {t.name for t in result.graph.initializer}
    for node in result.graph.node:
        for attribute in node.attribute:
            inner = {name for op in attribute.g.node for name in op.output} | {
                t.name for t in attribute.g.initializer
            }
            assert {name for op in attribute.g.node for name in op.input} <= made | inner
        made.update(node.output)


def main(tool: object, model: onnx.ModelProto, folder: Path, *options: str) -> int:
    source = build.save(model, folder / "in.onnx")
    return tool.main(["--input", str(source), "--output", str(folder / "out.onnx"), *options])


@pytest.mark.parametrize(
    "options", (("--formt", "bf16"), ("--force-all",), ("--form", "bf16"), ("--format", "bf17"))
)
def test_unknown_and_misspelt_options(options: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(convert_fp32_to_bf16, build.dense(4), tmp_path, *options)
    assert leaving.value.code == 2
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("tool", "dtype", "right"),
    (
        (convert_fp32_to_bf16, np.float16, "convert_fp16_to_bf16"),
        (convert_fp16_to_bf16, np.float32, "convert_fp32_to_bf16"),
    ),
)
def test_the_wrong_tool(
    tool: object, dtype: type, right: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tool, build.dense(4, dtype=dtype), tmp_path) == 1
    assert f"use tools.{right}" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


@every_format
@pytest.mark.parametrize("tool", (convert_fp32_to_bf16, convert_fp16_to_bf16))
def test_a_model_converted_twice(
    form: str, tool: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dtype = np.float32 if tool is convert_fp32_to_bf16 else np.float16
    assert main(tool, build.dense(4, dtype=dtype), tmp_path, "--format", form) == 0
    again = onnx.load(tmp_path / "out.onnx")
    (tmp_path / "out.onnx").unlink()
    capsys.readouterr()
    assert main(tool, again, tmp_path, "--format", form) == 3
    assert capsys.readouterr().out.startswith("Nothing to do")
    assert not (tmp_path / "out.onnx").exists()


def test_nothing_is_left_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for form in conversion.FORMATS:
        conversion.convert(build.dense(256), tmp_path, "--format", form)
    assert list((tmp_path / "here").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "in.onnx", "out.onnx"]


def test_the_default_domain_imported_twice(tmp_path: Path) -> None:
    model = build.dense(8)
    model.opset_import.add(domain="ai.onnx", version=17)
    result = conversion.convert(model, tmp_path)
    assert [(o.domain, o.version) for o in result.opset_import] == [("", 17)]


def test_weights_in_constant_nodes_of_branches_are_converted(tmp_path: Path) -> None:
    result = conversion.convert(corpus.build("constants in branches"), tmp_path, "--no-optimize")
    branches = [
        attribute.g for node in result.graph.node for attribute in node.attribute if attribute.HasField("g")
    ]
    stored = [tensor for graph in (result.graph, *branches) for tensor in graph.initializer]
    assert TensorProto.BFLOAT16 in {tensor.data_type for tensor in stored}


def test_each_output_of_a_split_keeps_its_number(tmp_path: Path) -> None:
    """One converter rewired Q, K and V to Split's first output."""
    model = corpus.build("split")
    feeds = {"x": np.array([[1, 2, 3, 4]], np.float32)}
    for form in FORMS:
        found = run(form, conversion.convert(model, tmp_path, "--format", form), feeds)
        assert conversion.same(found, evaluate(model, feeds))
