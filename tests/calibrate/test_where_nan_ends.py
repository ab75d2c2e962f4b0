"""Oracle: ONNX Runtime on one operator at a time, and models of which the answer can be read off."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.benchmarks.transformer import transformer
from tests.helpers import corpus
from transforms.calibrate import not_finite
from transforms.calibrate.not_finite import where_nan_ends
from transforms.model import graph_proto
from transforms.run.instrumented_model import InstrumentedModel
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
    assert OPERATORS.keys() == not_finite._HANDING_ON


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("expression", [text for texts in OPERATORS.values() for text in texts])
def test_operators_hand_nan_on_from_any_place(expression: str, optimize: bool) -> None:
    graph = graph_proto.import_model(one_operator(expression))
    model = InstrumentedModel(graph, ["y"], RunOptions(threads=1, optimize=optimize))
    assert np.isfinite(model.run({"t": OTHER})["y"]).all()
    for place in range(OTHER.size):
        x = OTHER.copy()
        x.reshape(-1)[place] = np.nan
        assert np.isnan(model.run({"t": x})["y"]).any()


def ends(text: str, *names: str) -> list[str]:
    return where_nan_ends(graph_proto.import_model(corpus.parse(text)), names)


def test_sums_are_taken_only_where_nan_could_get_lost() -> None:
    assert ends("(float[N] x) => (float[N] y) { a = Neg(x) y = Add(a, x) }", "a", "y", "x") == ["y"]
    assert ends("(float[N] x) => (float[N] y) { a = Neg(x) y = Relu(a) }", "a", "y") == ["y", "a"]
    assert ends("(float[N] x) => (float[N] y) { a = Neg(x) b = Add(a, x) y = Relu(b) }", "a", "b") == ["b"]
    assert ends("(float[N] x) => (float[N] y) { a = Neg(x) b = Add(a, x) y = Relu(b) }", "a") == ["a"]
    assert ends("(float[N] x) => (float[N] y) { y = Relu(x) }", "x") == ["x"]


def test_few_sums_in_a_transformer() -> None:
    graph = graph_proto.import_model(transformer())
    names = [t.name for node in graph.nodes for t in node.outputs if t.dtype == np.float32]
    assert len(where_nan_ends(graph, names)) < len(names) / 5
