"""Oracle: models whose state is known from how they were made."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from tests.helpers import build, corpus
from transforms import model_io
from transforms.conversion import inspect_bf16
from transforms.graph.selection import Selection, select
from transforms.insert_cast import insert_cast
from transforms.model import provenance
from transforms.model.model_error import NothingToDoError
from transforms.model.read_model import ModelError
from transforms.widen_float16 import widen_float16

STORED = """(float[1] x) => (float[1] y) { w = Cast <to = 1> (half_w) a = Mul(x, w) y = Tanh(a) }"""
STATES = {
    "float32": build.dense(8),
    "float16": build.dense(8, dtype=np.float16),
    None: corpus.parse("(int64[2] x) => (int64[2] y) { y = Abs(x) }"),
}


@pytest.mark.parametrize("element", STATES)
def test_the_type_of_a_model(element: str | None) -> None:
    state = inspect_bf16.describe(model_io.load(STATES[element]))
    assert (state.element, state.converted) == (element, False)


def test_what_is_computed_decides_not_what_is_stored() -> None:
    assert inspect_bf16.describe(model_io.load(corpus.parse(STORED))).element == "float32"
    for name in ("half island", "half input", "half output"):
        assert inspect_bf16.describe(model_io.load(corpus.build(name))).element == "float32"
    ends = "(float[8] x) => (float[8] y) { a = Cast <to = 10> (x) b = Exp(a) y = Cast <to = 1> (b) }"
    assert inspect_bf16.describe(model_io.load(corpus.parse(ends))).element == "float16"
    only = "(float16[2] x) => (float16[2] y) { y = Cast <to = 10> (x) }"
    assert inspect_bf16.describe(model_io.load(corpus.parse(only))).element == "float16"


@pytest.mark.parametrize(
    ("element", "source", "words"),
    (
        ("float32", "float16", "'m.onnx' is a float32 model; use tools.convert_fp32_to_bf16"),
        ("float16", "float32", "'m.onnx' is a float16 model; use tools.convert_fp16_to_bf16"),
        (None, "float32", "Nothing to do: 'm.onnx' has no float32 tensor to convert."),
    ),
)
def test_the_wrong_tool_is_told_the_right_one(element: str | None, source: str, words: str) -> None:
    with pytest.raises(NothingToDoError if element is None else ModelError, match=f"^{words}$"):
        inspect_bf16.require(inspect_bf16.State(element, None), source, "m.onnx")


@pytest.mark.parametrize("source", ("float32", "float16"))
def test_the_right_tool_is_welcome(source: str) -> None:
    assert inspect_bf16.require(inspect_bf16.State(source, None), source, "m.onnx") is None


def test_converted_by_metadata_or_by_pairs() -> None:
    model = build.dense(8)
    for key, text in provenance.entries("t", {"format": "simulate_bf16"}, None).items():
        model.metadata_props.add(key=key, value=text)
    state = inspect_bf16.describe(model_io.load(model))
    assert (state.converted, state.format) == (True, "format simulate_bf16")
    graph = model_io.load(build.dense(8))
    insert_cast(graph)
    assert inspect_bf16.describe(graph).format == "what its layers read is rounded"
    graph = model_io.load(build.dense(8))
    insert_cast(graph, exclude=select(graph, op_types=["MatMul"]))
    assert not inspect_bf16.describe(graph).converted, "something is left to round"


def test_a_model_whose_products_are_of_bfloat16_is_converted_whatever_follows_them() -> None:
    text = """(float[2,2] x) => (float[2,2] y) { a = Cast <to = 16> (x) b = MatMul(a, a)
        c = Cast <to = 1> (b) y = Tanh(c) }"""
    assert inspect_bf16.describe(model_io.load(corpus.parse(text))).converted


def test_metadata_of_another_tool_is_no_conversion() -> None:
    for text in ("{}", "not JSON", "[1]", '{"format": null}'):
        model = build.dense(8)
        model.metadata_props.add(key="onnx_narrow.options", value=text)
        assert not inspect_bf16.describe(model_io.load(model)).converted


def test_a_bfloat16_island_in_a_half_model_is_no_conversion() -> None:
    text = """(float16[2] x) => (float16[2] y) { a = Exp(x) b = Cast <to = 16> (a) c = Neg(b)
        d = Cast <to = 10> (c) y = Abs(d) }"""
    assert not inspect_bf16.describe(model_io.load(corpus.parse(text))).converted


def test_a_half_model_with_its_ends_is_converted() -> None:
    graph = model_io.load(build.dense(8, dtype=np.float16))
    widen_float16(graph)
    insert_cast(graph)
    assert inspect_bf16.describe(graph).converted
    assert graph.inputs[0].dtype == np.float16


def test_tally_counts_by_reason() -> None:
    graph = model_io.load(corpus.build("scale by size"))
    exclude = select(graph, op_types=["Tanh"])
    insert_cast(graph, exclude=exclude)
    tally = inspect_bf16.tally(graph, exclude, "with_cast")
    assert tally.converted == 1, "Div"
    assert {reason: dict(ops) for reason, ops in tally.kept.items()} == {
        "excluded by option": {"Tanh": 1},
        "arithmetic on shapes": {"Cast": 1, "Sqrt": 1},
    }
    tally = inspect_bf16.tally(graph, Selection(), "simulate_bf16")
    assert tally.converted == 0
    assert TensorProto.BFLOAT16 == 16
