"""Oracle: the model itself. onnx's checker lets such names pass, graph-surgeon takes the two for one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import conversion, corpus
from transforms.model import graph_proto

LATER = {
    "initializer": """(float[2] x, bool c) => (float[2] z) {
        y = If (c) <then_branch = t () => (float[2] o) <float[2] q = {1, 2}> { o = Add(x, q) },
                    else_branch = e () => (float[2] p) { p = Neg(x) }>
        q = Tanh(y) z = Add(q, y) }""",
    "tensor": """(float[2] x, bool c) => (float[2] z) {
        y = If (c) <then_branch = t () => (float[2] o) { q = Exp(x) o = Add(x, q) },
                    else_branch = e () => (float[2] p) { p = Neg(x) }>
        q = Tanh(y) z = Add(q, y) }""",
    "output of a body": """(float[2] x, bool c) => (float[2] q) {
        y = If (c) <then_branch = t () => (float[2] q) { q = Exp(x) },
                    else_branch = e () => (float[2] q) { q = Neg(x) }>
        q = Tanh(y) }""",
    "input of a body": """(float[2] x, bool c) => (float[2] q) <int64 n = {2}> {
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] q) => (bool l, float[2] o) {
            l = Identity(k) o = Add(q, x) }>
        q = Tanh(y) }""",
    "in the body of a body": """(float[2] x, bool c) => (float[2] q) <int64 n = {2}> {
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] s) => (bool l, float[2] q) {
            l = Identity(k)
            m = If (k) <then_branch = t () => (float[2] o) { q = Exp(s) o = Add(q, x) },
                        else_branch = e () => (float[2] q) { q = Neg(s) }>
            q = Abs(m) }>
        q = Tanh(y) }""",
}


@pytest.mark.parametrize("name", LATER)
def test_a_name_that_a_graph_around_gives_later(name: str) -> None:
    model = corpus.parse(LATER[name])
    result = graph_proto.export_model(graph_proto.import_model(model))
    onnx.checker.check_model(result, full_check=True)
    for c in (False, True):
        feed = {"x": np.float32([0.5, -1]), "c": np.array(c)}
        expected, found = conversion.run(model, feed), conversion.run(result, feed)
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
