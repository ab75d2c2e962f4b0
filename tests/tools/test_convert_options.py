"""Each option of the converters matters. Oracle: the bits of weights and results, types, printed words."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, numpy_helper

from tests.helpers import build, conversion, corpus
from tests.helpers.rounded import bf16, evaluate
from tools import convert_fp16_to_bf16, convert_fp32_to_bf16
from transforms import model_io

CHAIN = corpus.parse("""(float[2] x) => (float[2] y) <float[2] w = {0.1, 0.2}> {
    [first] a = Mul(x, w) [second] b = Sin(a) [third] c = Cos(b) [last] y = Mul(c, w) }""")
X = {"x": np.array([1.2345678, 0.7654321], np.float32)}
FORMS = ("with_cast", "bf16", "customqdq")


def run(form: str, model: onnx.ModelProto, feeds: dict = X) -> dict:
    return (conversion.run_wrapped if form == "bf16" else conversion.run)(model, feeds)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def types(values: list[onnx.ValueInfoProto]) -> list[int]:
    return [value.type.tensor_type.elem_type for value in values]


def test_format_names_the_operators(tmp_path: Path) -> None:
    found = {form: conversion.convert(CHAIN, tmp_path, "--format", form) for form in conversion.FORMATS}
    assert set(operators(found["with_cast"])) == {"Mul", "Sin", "Cos", "Cast"}
    assert operators(found["simulate_bf16"]).count("Cast") == 2
    assert "ExtendedQuantizeLinear" in operators(found["customqdq"])
    made = {value.name: value.type.tensor_type.elem_type for value in found["bf16"].graph.value_info}
    by_op = {node.op_type: made.get(node.output[0]) for node in found["bf16"].graph.node}
    assert by_op["Sin"] == TensorProto.BFLOAT16
    assert conversion.convert(CHAIN, tmp_path) == found["with_cast"]


def test_simulate_stores_float32_weights_on_the_grid(tmp_path: Path) -> None:
    converted = conversion.convert(CHAIN, tmp_path, "--format", "simulate_bf16", "--no-optimize")
    (weight,) = converted.graph.initializer
    array = numpy_helper.to_array(weight)
    assert array.dtype == np.float32
    assert np.array_equal(array, bf16(np.array([0.1, 0.2], np.float32)))
    assert operators(converted)[2:] == operators(CHAIN)
    tail = corpus.parse(
        "(float[2] x, float[2] w) => (float[2] y) { a = Mul(x, w) b = Sin(a) c = Cos(b) y = Mul(c, w) }"
    )
    assert conversion.same(
        conversion.run(converted, X), conversion.run(tail, {"x": bf16(X["x"]), "w": array})
    )


@pytest.mark.parametrize("form", FORMS)
def test_weights_float32_computes_the_same(form: str, tmp_path: Path) -> None:
    low = conversion.convert(CHAIN, tmp_path, "--format", form)
    high = conversion.convert(CHAIN, tmp_path, "--format", form, "--weights", "float32")
    assert {t.data_type for t in low.graph.initializer if t.dims == [2]} == {TensorProto.BFLOAT16}
    assert {t.data_type for t in high.graph.initializer if t.dims == [2]} == {TensorProto.FLOAT}
    assert conversion.same(run(form, low), run(form, high))


@pytest.mark.parametrize("domain", ("ai.onnx.contrib", "com.amd.quark"))
def test_domain_of_the_operators(domain: str, tmp_path: Path) -> None:
    converted = conversion.convert(CHAIN, tmp_path, "--format", "customqdq", "--domain", domain)
    found = {node.domain for node in converted.graph.node if node.op_type.startswith("Extended")}
    assert found == {domain}
    assert {opset.domain for opset in converted.opset_import} == {"", domain}
    assert conversion.same(conversion.run(converted, X), evaluate(CHAIN, X))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tool", ("convert_fp32_to_bf16", "convert_fp16_to_bf16"))
def test_inputs_and_outputs_become_bfloat16(form: str, tool: str, tmp_path: Path) -> None:
    dtype = np.float16 if "fp16" in tool else np.float32
    model = build.dense(8, layers=2, dtype=dtype)
    kept = conversion.convert(model, tmp_path, "--format", form, tool=tool)
    changed = conversion.convert(model, tmp_path, "--format", form, "--no-keep-io-types", tool=tool)
    again = conversion.convert(model, tmp_path, "--format", form, "--keep-io-types", tool=tool)
    element = TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.FLOAT
    for ends in ("input", "output"):
        assert types(getattr(kept.graph, ends)) == types(getattr(again.graph, ends)) == [element]
        assert types(getattr(changed.graph, ends)) == [TensorProto.BFLOAT16]
        assert [v.name for v in getattr(changed.graph, ends)] == [v.name for v in getattr(model.graph, ends)]
    rows = np.random.default_rng(0).standard_normal((3, 8)).astype(ml_dtypes.bfloat16)
    narrow = conversion.run_wrapped(changed, {"x": rows.astype(np.float32)})["y"]
    wide = run(form, kept, {"x": rows.astype(dtype)})["y"]
    assert np.array_equal(narrow.astype(dtype), wide)


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_excluding_every_node_leaves_nothing_to_do(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(CHAIN, tmp_path, "--format", form, "--exclude-node", "*", "--no-optimize") == 3
    assert "Nothing to do" in capsys.readouterr().out
    assert not (tmp_path / "out.onnx").exists()


def main(model: onnx.ModelProto, folder: Path, *options: str, tool: ModuleType = convert_fp32_to_bf16) -> int:
    source, target = build.save(model, folder / "in.onnx"), folder / "out.onnx"
    target.unlink(missing_ok=True)
    return tool.main(["--input", str(source), "--output", str(target), *options])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "choice",
    (("--exclude-node", "s*d", "--exclude-node", "third"), ("--exclude-op", "Sin", "--exclude-op", "Cos")),
)
def test_excluded_nodes_hand_float32_to_one_another(
    form: str, choice: tuple[str, ...], tmp_path: Path
) -> None:
    """Between the two nodes nothing is rounded; on the way in and out everything is."""
    converted = conversion.convert(CHAIN, tmp_path, "--format", form, *choice)
    middle = corpus.parse("(float[2] a) => (float[2] c) { b = Sin(a) c = Cos(b) }")
    w = bf16(np.array([0.1, 0.2], np.float32))
    inside = conversion.run(middle, {"a": bf16(bf16(X["x"]) * w)})["c"]
    assert np.array_equal(run(form, converted)["y"], bf16(bf16(inside) * w))


@pytest.mark.parametrize("option", ("--exclude-node", "--exclude-op"))
def test_a_choice_that_matches_nothing_is_an_error(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(CHAIN, tmp_path, option, "Nothing") == 1
    assert "'Nothing'" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimize", ((), ("--no-optimize",)))
def test_excluded_member_of_a_group_of_products(form: str, optimize: tuple[str, ...], tmp_path: Path) -> None:
    """Q of Q, K and V is excluded: it sees the weight as it is, whether or not the others are merged."""
    random = np.random.default_rng(4)
    weights = {name: random.standard_normal((4, 4)).astype(np.float32) for name in ("wq", "wk", "wv")}
    nodes = [onnx.helper.make_node("Tanh", ["x"], ["t"], "tanh")]
    nodes += [onnx.helper.make_node("MatMul", ["t", f"w{n}"], [n], f"matmul_{n}") for n in "qkv"]
    model = build.model(nodes, [build.value("x", [2, 4])], [build.value(n, [2, 4]) for n in "qkv"], weights)
    feeds = {"x": random.standard_normal((2, 4)).astype(np.float32)}
    converted = conversion.convert(model, tmp_path, "--format", form, "--exclude-node", "matmul_q", *optimize)
    t = bf16(np.tanh(bf16(feeds["x"])))
    found = run(form, converted, feeds)
    assert np.allclose(found["q"], t @ weights["wq"], rtol=2**-21, atol=2**-21), "float32 sums, not rounded"
    assert np.array_equal(found["k"], bf16(found["k"]))
    assert np.array_equal(found["v"], bf16(found["v"]))


@pytest.mark.parametrize("form", FORMS)
def test_excluded_node_that_optimization_folds(form: str, tmp_path: Path) -> None:
    model = corpus.parse("(float[2] x) => (float[2] y) { [gone] a = Identity(x) [stays] y = Sin(a) }")
    converted = conversion.convert(model, tmp_path, "--format", form, "--exclude-node", "gone")
    assert conversion.same(run(form, converted), evaluate(model, X))


@pytest.mark.parametrize("form", FORMS)
def test_excluded_if_keeps_its_branches(form: str, tmp_path: Path) -> None:
    model = corpus.build("if")
    feeds = corpus.feeds(model)
    converted = conversion.convert(model, tmp_path, "--format", form, "--exclude-op", "If")
    (node,) = [node for node in converted.graph.node if node.op_type == "If"]
    assert all(op.op_type != "Cast" for attribute in node.attribute for op in attribute.g.node)
    inside = np.exp(bf16(np.tanh(bf16(feeds["x"])))) * np.float32(0.1)
    assert np.allclose(run(form, converted, feeds)["y"], bf16(inside), rtol=2**-8)


OVERFLOW = corpus.parse(
    """(float[1] x) => (float[1] y, float[1] z) {
    a = Mul(x, x) y = Sqrt(a) b = Neg(a) z = Relu(a) }""".replace("b = Neg(a) ", "")
)


@pytest.mark.parametrize("form", FORMS)
def test_saturated_activations_never_overflow(form: str, tmp_path: Path) -> None:
    """3.4e38 is a float32 above the largest bfloat16 and rounds to infinity."""
    feeds = {"x": np.array([1.8442e19], np.float32)}
    assert np.isfinite(conversion.run(OVERFLOW, feeds)["z"]).all()
    plain = conversion.convert(OVERFLOW, tmp_path, "--format", form)
    assert np.isinf(run(form, plain, feeds)["z"]).all()
    clipped = conversion.convert(OVERFLOW, tmp_path, "--format", form, "--saturate-activations")
    found = run(form, clipped, feeds)
    assert found["z"] == np.float32(3.38953139e38)
    assert np.isfinite(found["y"]).all()


@pytest.mark.parametrize("tool", (convert_fp32_to_bf16, convert_fp16_to_bf16))
def test_strict_refuses_nan(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dtype = np.float32 if tool is convert_fp32_to_bf16 else np.float16
    weights = {"w": np.array([1, np.nan, np.inf], dtype)}
    nodes = [onnx.helper.make_node("Add", ["x", "w"], ["y"])]
    model = build.model(nodes, [build.value("x", [3], dtype)], [build.value("y", [3], dtype)], weights)
    assert main(model, tmp_path, "--strict", tool=tool) == 1
    assert "NaN" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()
    converted = conversion.convert(model, tmp_path, tool=tool.__name__.removeprefix("tools."))
    printed = capsys.readouterr().out
    assert "NaN in 1 weights: w" in printed
    assert "Saturated: 1 weights" in printed
    (weight,) = [numpy_helper.to_array(t).astype(np.float32) for t in converted.graph.initializer]
    assert np.isnan(weight[1])
    assert weight[2] == np.float32(3.38953139e38)


def test_no_optimize_leaves_the_nodes(tmp_path: Path) -> None:
    model = corpus.parse("(float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) y = Sin(b) }")
    assert operators(conversion.convert(model, tmp_path)).count("Identity") == 0
    assert operators(conversion.convert(model, tmp_path, "--no-optimize")).count("Identity") == 2


def test_external_data_out_and_in(tmp_path: Path) -> None:
    model = build.dense(256, layers=2)
    whole = conversion.convert(model, tmp_path)
    outside = conversion.convert(model, tmp_path, "--save_as_external_data")
    stored = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert [t.data_location for t in stored.graph.initializer] == [TensorProto.EXTERNAL] * 2
    (data,) = tmp_path.glob("out.onnx.*.data")
    assert data.stat().st_size == 2 * 256 * 256 * 2
    for a, b in zip(whole.graph.initializer, outside.graph.initializer, strict=True):
        assert (a.name, a.raw_data) == (b.name, b.raw_data)
    source = build.save_external(model, tmp_path / "split.onnx", "weights.bin")
    before = (tmp_path / "weights.bin").read_bytes()
    arguments = ["--input", str(source), "--output", str(tmp_path / "joined.onnx")]
    assert convert_fp32_to_bf16.main(arguments) == 0
    assert (tmp_path / "weights.bin").read_bytes() == before
    assert onnx.load(tmp_path / "joined.onnx").graph == whole.graph


def test_external_data_is_automatic_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_io, "PROTOBUF_LIMIT", 100_000)
    conversion.convert(build.dense(256), tmp_path)
    assert len(list(tmp_path.glob("out.onnx.*.data"))) == 1
    conversion.convert(build.dense(128), tmp_path)
    assert not list(tmp_path.glob("out.onnx.*.data"))


def test_provenance(tmp_path: Path) -> None:
    converted = conversion.convert(CHAIN, tmp_path, "--exclude-op", "Sin")
    entries = {entry.key: entry.value for entry in converted.metadata_props}
    assert entries["onnx_narrow.tool"] == "convert_fp32_to_bf16"
    options = json.loads(entries["onnx_narrow.options"])
    assert (options["format"], options["exclude_op"]) == ("with_cast", ["Sin"])
    digest = hashlib.sha256((tmp_path / "in.onnx").read_bytes()).hexdigest()
    assert entries["onnx_narrow.source_sha256"] == digest
    assert str(tmp_path) not in str(entries)


@pytest.mark.parametrize(
    "form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.heavy) for form in FORMS[1:])]
)
def test_same_bytes_in_every_process(form: str, tmp_path: Path) -> None:
    source, found = build.save(corpus.build("nested if"), tmp_path / "in.onnx"), set()
    for seed in ("1", "2"):
        target = tmp_path / f"{seed}.onnx"
        command = [sys.executable, "-m", "tools.convert_fp32_to_bf16", "--format", form]
        command += ["--input", str(source), "--output", str(target)]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True)
        found.add(target.read_bytes())
    assert len(found) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--domain", "com.amd.quark"], "--domain requires --format customqdq"),
        (["--format", "bf16", "--domain", "ai.onnx.contrib"], "--domain requires --format customqdq"),
        (
            ["--format", "simulate_bf16", "--weights", "bfloat16"],
            "--weights requires --format with_cast, bf16 or customqdq",
        ),
        (
            ["--format", "simulate_bf16", "--saturate-activations"],
            "--saturate-activations requires --format with_cast, bf16",
        ),
    ],
)
def test_an_option_without_effect_is_a_usage_error(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = build.save(CHAIN, tmp_path / "in.onnx")
    with pytest.raises(SystemExit) as left:
        convert_fp32_to_bf16.main(["--input", str(source), "--output", str(tmp_path / "out.onnx"), *options])
    assert left.value.code == 2
    errors = capsys.readouterr().err
    assert words in errors and errors.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()


def test_another_writer_right_after_the_end_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model takes the place of the one just written, whose external data go."""
    save = model_io.save

    def save_and_be_replaced(graph: gs.Graph, path: Path, **options: Any) -> list[Path]:
        files = save(graph, path, **options)
        save(model_io.load(build.dense(256, seed=9)), path)
        return files

    monkeypatch.setattr(model_io, "save", save_and_be_replaced)
    conversion.convert(build.dense(256), tmp_path, "--save_as_external_data")
    assert not list(tmp_path.glob("out.onnx.*.data"))
