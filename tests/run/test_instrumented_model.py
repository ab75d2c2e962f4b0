"""Oracle: what NumPy finds in the tensors themselves, and ONNX Runtime on one operator at a time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.benchmarks.transformer import transformer
from tests.helpers import build, corpus
from transforms.model import graph_proto
from transforms.run import instrumented_model
from transforms.run.instrumented_model import EMPTY, InstrumentedModel, float_outputs
from transforms.runtime.session import RunOptions

SHAPE = (4, 6)
OTHER = np.random.default_rng(0).uniform(0.5, 1.5, SHAPE).astype(np.float32)
ROW = OTHER[0]

OPERATORS = {
    "Add": ("Add(x, other)", "Add(other, x)"),
    "Sub": ("Sub(x, other)", "Sub(other, x)"),
    "Mul": ("Mul(x, other)", "Mul(zero, x)"),
    "Div": ("Div(x, other)", "Div(other, x)", "Div(zero, x)"),
    "MatMul": ("MatMul(x, across)", "MatMul(across, x)", "MatMul(x, none)"),
    "Gemm": ("Gemm(x, across)", "Gemm <transA = 1> (x, other)", "Gemm(across, x)", "Gemm(other, none, x4)"),
    "LayerNormalization": ("LayerNormalization(x, row)",),
    "Softmax": ("Softmax(x)", "Softmax <axis = 0> (x)"),
    "Reshape": ("Reshape(x, flat)",),
    "Transpose": ("Transpose(x)",),
    "Flatten": ("Flatten(x)",),
    "Squeeze": ("Squeeze(x)",),
    "Unsqueeze": ("Unsqueeze(x, axis)",),
    "Concat": ("Concat <axis = 0> (x, other)", "Concat <axis = 1> (other, x)"),
    "Identity": ("Identity(x)",),
}
"""The operators that are trusted to hand NaN on, each with the ways in which it can be used."""


def one_operator(expression: str) -> onnx.ModelProto:
    """A model y = expression of x, with NaN coming in as the tensor t that no weight can be folded into."""
    text = f"(float[4,6] t) => (float[A,B] y) {{ x = Identity(t) x4 = MatMul(t, square) y = {expression} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> main {text}')
    weights = {
        "other": OTHER,
        "zero": np.zeros(SHAPE, np.float32),
        "across": OTHER.T.copy(),
        "none": np.zeros((6, 4), np.float32),
        "square": np.eye(6, 4, dtype=np.float32),
        "row": ROW,
        "flat": np.array([6, 4]),
        "axis": np.array([1]),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for name, x in weights.items())
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def test_the_table_is_complete() -> None:
    assert OPERATORS.keys() == instrumented_model._HANDING_ON


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("expression", [text for texts in OPERATORS.values() for text in texts])
def test_operators_hand_nan_on_from_any_place(expression: str, optimize: bool) -> None:
    graph = graph_proto.import_model(one_operator(expression))
    model = InstrumentedModel(graph, [], ["y"], RunOptions(threads=1, optimize=optimize))
    assert np.isfinite(model.run({"t": OTHER}).arrays["y"]).all()
    for place in range(OTHER.size):
        x = OTHER.copy()
        x.reshape(-1)[place] = np.nan
        assert np.isnan(model.run({"t": x}).arrays["y"]).any()


def ends(text: str, *names: str) -> list[str]:
    return instrumented_model._where_nan_ends(corpus.parse(text).graph, names)


def test_sums_are_taken_only_where_nan_could_get_lost() -> None:
    assert ends("(float[N] x) => (float[N] y) { a = Neg(x) y = Add(a, x) }", "a", "y", "x") == ["y"]
    assert ends("(float[N] x) => (float[N] y) { a = Neg(x) y = Relu(a) }", "a", "y") == ["y", "a"]
    assert ends("(float[N] x) => (float[N] y) { a = Neg(x) b = Add(a, x) y = Relu(b) }", "a", "b") == ["b"]
    assert ends("(float[N] x) => (float[N] y) { a = Neg(x) b = Add(a, x) y = Relu(b) }", "a") == ["a"]
    assert ends("(float[N] x) => (float[N] y) { y = Relu(x) }", "x") == ["x"]


def test_few_sums_in_a_transformer() -> None:
    graph = graph_proto.import_model(transformer())
    names = [t.name for node in graph.nodes for t in node.outputs if t.dtype == np.float32]
    light, _ = graph_proto.export_light(graph)
    assert len(instrumented_model._where_nan_ends(light.graph, names)) < len(names) / 5


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_ranges_and_arrays(opset: int) -> None:
    graph = graph_proto.import_model(build.dense(layers=2, opset=opset))
    x = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    arrays = InstrumentedModel(graph, [], ["x", "matmul0_out", "y"]).run({"x": x}).arrays
    found = InstrumentedModel(graph, ["x", "matmul0_out"], ["y"]).run({"x": x})
    for name in ("x", "matmul0_out"):
        assert found.ranges[name] == pytest.approx((arrays[name].min(), arrays[name].max()), rel=1e-5)
    assert found.arrays["y"].shape == (5, 16) and arrays["x"] is x and not found.is_doubtful


def test_empty_tensors_are_no_cause_for_doubt() -> None:
    graph = graph_proto.import_model(corpus.build("relu only"))
    found = InstrumentedModel(graph, ["x", "y"], []).run({"x": np.zeros(0, np.float32)})
    assert found.ranges == {"x": EMPTY, "y": EMPTY} and not found.is_doubtful


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 8, 16])
def test_numbers_that_are_not_finite_are_doubtful(value: float, place: int) -> None:
    model = InstrumentedModel(graph_proto.import_model(corpus.build("relu only")), ["x"], [])
    x = np.ones(17, np.float32)
    assert not model.run({"x": x}).is_doubtful
    x[place] = value
    assert model.run({"x": x}).is_doubtful


def test_names_of_the_model_are_never_taken() -> None:
    model = corpus.parse("(float[N] x) => (float[N] x_low, float[N] x_sum) { x_low = Neg(x) x_sum = Exp(x) }")
    found = InstrumentedModel(graph_proto.import_model(model), ["x", "x_low"], []).run(
        {"x": np.float32([1, 2])}
    )
    assert found.ranges == {"x": (1, 2), "x_low": (-2, -1)}


def test_reductions_stand_directly_behind_their_tensor() -> None:
    """So that a large tensor is let go of before the next is made."""
    graph = graph_proto.import_model(build.dense(layers=3))
    light, _ = graph_proto.export_light(graph)
    instrumented_model._insert_reductions(graph, light.graph, ["x", "matmul0_out", "matmul2_out"], [])
    order = [node.op_type for node in light.graph.node]
    assert order[:2] == ["ReduceMin", "ReduceMax"]
    assert order[order.index("MatMul") + 1 :][:2] == ["ReduceMin", "ReduceMax"]
    onnx.checker.check_model(helper.make_model(light.graph, opset_imports=light.opset_import, ir_version=8))


def test_outputs_that_matter_for_nan() -> None:
    names = {name: float_outputs(graph_proto.import_model(corpus.build(name))) for name in corpus.MODELS}
    assert names["integers"] == ["y"] and names["half output"] == ["z"] and names["weight is output"] == ["y"]
