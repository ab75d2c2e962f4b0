"""Operators that onnx infers nothing of. Oracle: the model rounded node by node; untyped is not rounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import conversion, corpus, rounded
from transforms import model_io
from transforms.model.function_types import all_sizes_known, infer_types

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
