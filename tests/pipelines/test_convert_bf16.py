"""The conversion of every model of the corpus.

Oracles: tests/helpers/rounded.py, and the formats of one another.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tests.helpers import build, conversion, corpus, rounded
from tests.helpers.spread import spread
from tools import convert_fp32_to_bf16

CONTROL_FLOW = {name for name, text in corpus.MODELS.items() if "If (" in text or "= b (" in text}
UNLIKE = {
    "sequence",
    "split to a sequence",
    "sequence output",
    "optional",
    "half island",
    "half output",
    "half input",
    "quantized",
}
"""What the oracle does not evaluate: values that are not tensors, and types that a tool changes."""
SHAPES = {"scale by size", "shape arithmetic", "resize", "resize computed"}
"""Kept in float by design, where the oracle rounds: arithmetic on shapes, inputs tied to float32."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], onnx.ModelProto]:
    """Every model of the corpus in every format, not optimized, so that each node stays what it is."""
    folder = tmp_path_factory.mktemp("corpus")
    return {
        (name, form): conversion.convert(corpus.build(name), folder, "--format", form, "--no-optimize")
        for name in corpus.MODELS
        for form in ("with_cast", "bf16", "customqdq")
    }


@pytest.mark.parametrize("name", sorted(corpus.MODELS.keys() - CONTROL_FLOW - UNLIKE - SHAPES))
def test_every_value_is_rounded_once(name: str, results: dict) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model)
    assert conversion.same(conversion.run(results[name, "with_cast"], feeds), rounded.evaluate(model, feeds))


@pytest.mark.parametrize("name", corpus.MODELS)
def test_formats_compute_the_same_numbers(name: str, results: dict) -> None:
    feeds = corpus.feeds(corpus.build(name))
    with_cast = conversion.run(results[name, "with_cast"], feeds)
    assert conversion.same(conversion.run(results[name, "customqdq"], feeds), with_cast)
    assert conversion.same(conversion.run_wrapped(results[name, "bf16"], feeds), with_cast)


@pytest.mark.parametrize(("name", "form"), spread(corpus.MODELS, conversion.FORMATS, of=3))
def test_optimized_models_stay_near_the_float_model(name: str, form: str, tmp_path: Path) -> None:
    """Bound: each of at most 8 roundings in a row errs by 2^-9 of values below 16, and no operator here
    magnifies an error more than 8 times."""
    model = corpus.build(name)
    if form == "simulate_bf16" and name in ("output of a cast", "branches of constants alone"):
        pytest.skip("has no float input and no weight")
    feeds = corpus.feeds(model)
    expected = conversion.run(model, feeds)
    converted = conversion.convert(model, tmp_path, "--format", form)
    found = (conversion.run_wrapped if form == "bf16" else conversion.run)(converted, feeds)
    assert list(found) == list(expected)
    for output, value in expected.items():
        if not isinstance(value, list) and value.dtype.kind == "f":
            assert found[output].dtype == value.dtype
            assert np.allclose(found[output].astype(float), value.astype(float), rtol=0.04, atol=0.02)
        elif not isinstance(value, list):
            assert np.array_equal(found[output], value)


@pytest.mark.parametrize("form", ("with_cast", "bf16", "customqdq"))
@pytest.mark.parametrize("name", corpus.MODELS)
def test_inputs_and_outputs_are_kept(name: str, form: str, results: dict) -> None:
    assert _interface(results[name, form]) == _interface(corpus.build(name))


def _interface(model: onnx.ModelProto) -> list[list[tuple[str, bytes]]]:
    """Names, types and shapes, symbolic dimensions included."""
    ends = (model.graph.input, model.graph.output)
    return [[(value.name, value.type.SerializeToString(deterministic=True)) for value in end] for end in ends]


@pytest.mark.parametrize(
    ("name", "form", "known"),
    spread(corpus.MODELS, ("with_cast", "bf16", "customqdq"), ("by its metadata", "by its nodes"), of=3),
)
def test_second_conversion_has_nothing_to_do(
    name: str, form: str, known: str, results: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    converted = onnx.ModelProto.FromString(results[name, form].SerializeToString())
    if known == "by its nodes":
        del converted.metadata_props[:]
    source = build.save(converted, tmp_path / "converted.onnx")
    arguments = ["--input", str(source), "--output", str(tmp_path / "again.onnx"), "--format", form]
    assert convert_fp32_to_bf16.main(arguments) == 3
    assert "Nothing to do" in capsys.readouterr().out
    assert not (tmp_path / "again.onnx").exists()


def pairs(model: onnx.ModelProto) -> int:
    """Count the Casts to bfloat16 and the bfloat16 weights, in all bodies."""
    return sum(
        tensor.data_type == onnx.TensorProto.BFLOAT16 for g in graphs(model.graph) for tensor in g.initializer
    ) + sum(
        node.op_type == "Cast" and node.attribute[0].i == onnx.TensorProto.BFLOAT16
        for g in graphs(model.graph)
        for node in g.node
    )


def graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    bodies = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [graph, *(inner for body in bodies for inner in graphs(body))]


@pytest.mark.parametrize(
    ("name", "count"),
    {
        "relu only": 2,  # x, y
        "unnamed twins": 4,  # x, a, b, y
        "input twice": 3,  # x, a, y
        "two consumers": 5,  # x, a, b, c, y
        "relu beside another": 5,  # x, b, c, y, and a for Exp
        "relu of relu": 2,  # x, y
        "output also used": 3,  # x, a, y
        "output also used by relu": 3,  # x, a as output, y
        "input is output": 2,  # x for Tanh, y
        "weight is output": 3,  # x, w for Add, y
        "shared weight": 5,  # x, w, a, y, z
        "layers": 8,  # x, two weights, two biases, a, c, y
        "casts": 4,  # x, f, g, y
        "integers": 2,  # x, y
        "resize": 5,  # x, a, y, scales for Sqrt, z
        "if": 7,  # x, a, w, y; q, q, v in the branches
        "nested if": 6,  # x, a, w, y; b in the branch, m in the inner one
        "loop": 8,  # x, a, w, y, steps; s, m and r in the body
    }.items(),
)
def test_one_pair_for_each_tensor(name: str, count: int, results: dict) -> None:
    assert pairs(results[name, "with_cast"]) == count


def test_weights_are_stored_in_half_the_bytes(tmp_path: Path) -> None:
    model = build.dense(64, layers=3)
    converted = conversion.convert(model, tmp_path)
    stored = {tensor.name: tensor for tensor in converted.graph.initializer}
    for tensor in model.graph.initializer:
        expected = numpy_helper.to_array(tensor).astype(ml_dtypes.bfloat16)
        assert stored[tensor.name].raw_data == expected.tobytes()
    casts = [node.input[0] for node in converted.graph.node if node.op_type == "Cast"]
    assert all(casts.count(name) == 1 for name in stored)
    assert (tmp_path / "out.onnx").stat().st_size < 0.7 * (tmp_path / "in.onnx").stat().st_size


OPERATORS = (("Tanh", 1), ("Relu", 1), ("Neg", 1), ("Add", 2), ("Mul", 2), ("Max", 2))


@st.composite
def small_graphs(draw: st.DrawFn) -> str:
    """Text of a random graph of up to six nodes, each reading any tensors before it; up to two outputs.

    One of these depends on an input at least: of constants alone, once folded, nothing is left to round.
    """
    tensors, body, varying = ["x", "z", "w"], [], {"x", "z"}
    for i in range(draw(st.integers(1, 6))):
        op, arity = draw(st.sampled_from(OPERATORS))
        inputs = [draw(st.sampled_from(tensors)) for _ in range(arity)]
        tensors.append(f"t{i}")
        varying |= set() if varying.isdisjoint(inputs) else {f"t{i}"}
        body.append(f"t{i} = {op} ({', '.join(inputs)})")
    ends = draw(st.lists(st.sampled_from(tensors[3:]), min_size=1, max_size=2, unique=True))
    assume(not varying.isdisjoint(ends))
    outputs = ", ".join(f"float[2] {name}" for name in ends)
    return f"(float[2] x, float[2] z) => ({outputs}) <float[2] w = {{0.1, -0.7}}> {{ {' '.join(body)} }}"


@settings(max_examples=12, deadline=None, derandomize=True)
@given(text=small_graphs(), optimized=st.booleans())
def test_random_graphs(text: str, optimized: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = corpus.parse(text)
    folder = tmp_path_factory.mktemp("random")
    options = () if optimized else ("--no-optimize",)
    feeds = {"x": np.array([0.3, -1.7], np.float32), "z": np.array([1.1, 0.01], np.float32)}
    found = {
        form: conversion.convert(model, folder, "--format", form, *options)
        for form in ("with_cast", "bf16", "customqdq")
    }
    with_cast = conversion.run(found["with_cast"], feeds)
    assert conversion.same(with_cast, conversion.run(found["customqdq"], feeds))
    assert conversion.same(with_cast, conversion.run_wrapped(found["bf16"], feeds))
    if not optimized:
        assert conversion.same(with_cast, rounded.evaluate(model, feeds))
