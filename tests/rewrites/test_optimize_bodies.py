"""Oracle: ONNX Runtime on the model as it was, without optimizations, and onnx's checker."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import conversion, plans
from transforms import model_io, optimize
from transforms.graph import walk
from transforms.model import graph_proto

LINEAR_IN_LOOP = """(float[2,3,4] x, int64 n, bool c) => (float[2,3,4] y) {
    m = MatMul(x, w) h = Add(m, b)
    y = Loop(n, c, h) <body = body (int64 i, bool k, float[2,3,4] s) => (bool l, float[2,3,4] t) {
        l = Identity(k) p = MatMul(s, v) t = Add(p, b) }> }"""

OTHER_SHAPES = """(float[2,3,4] x, int64 n, bool c) => (float[2,3,4] y) {
    m = MatMul(x, w) h = Add(m, b)
    y = Loop(n, c, h) <body = body (int64 i, bool k, float[2,3,4] s) => (bool l, float[2,3,4] t) {
        l = Identity(k) r = Reshape(s, f) p = MatMul(r, u) q = Add(p, d) t = Reshape(q, g) }> }"""

LINEAR_IN_BRANCHES = """(float[2,3,4] x, int64 n, bool c) => (float[2,3,4] y) {
    h = If (c) <then_branch = t () => (float[2,3,4] o) { m = MatMul(x, w) o = Add(m, b) },
                else_branch = e () => (float[2,3,4] o) { m = MatMul(x, v) o = Add(m, b) }>
    k = MatMul(h, w) y = Add(k, b) }"""

IN_A_LOOP_IN_A_LOOP = """(float[2,3,4] x, int64 n, bool c) => (float[2,3,4] y) {
    m = MatMul(x, w) h = Add(m, b)
    y = Loop(n, c, h) <body = body (int64 i, bool k, float[2,3,4] s) => (bool l, float[2,3,4] t) {
        l = Identity(k) p = MatMul(s, v) a = Add(p, b)
        t = Loop(n, c, a) <body = inner (int64 j, bool k2, float[2,3,4] s2) => (bool l2, float[2,3,4] t2) {
            l2 = Identity(k2) p2 = MatMul(s2, w) t2 = Add(p2, b) }> }> }"""

NAMES_OF_THE_OPTIMIZER = """(float[2,3,4] x, int64 n, bool c) => (float[2,3,4] y) {
    gemm_output_reshape_arg = Neg(x) m = MatMul(gemm_output_reshape_arg, w) h = Add(m, b)
    y = Loop(n, c, h) <body = body (int64 i, bool k, float[2,3,4] s) => (bool l, float[2,3,4] t) {
        l = Identity(k) gemm_input_reshape_arg = Neg(s)
        p = MatMul(gemm_input_reshape_arg, v) t = Add(p, b) }> }"""

TEXTS = {
    name: text
    for name, text in globals().items()
    if name.isupper() and isinstance(text, str) and "=>" in text
}

WEIGHTS: plans.Weights = {
    **{"w": (4, 4), "v": (4, 4), "b": (4,), "u": (2, 2), "d": (2,)},
    **{"f": np.array([3, 4, 2]), "g": np.array([2, 3, 4])},
}


def model_of(text: str) -> onnx.ModelProto:
    names = {name for name in WEIGHTS if f" {name})" in text}
    return plans.model(text, {name: WEIGHTS[name] for name in WEIGHTS if name in names})


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, feed)[0])


@pytest.mark.parametrize("name", TEXTS)
def test_layers_in_a_graph_and_in_its_bodies(name: str) -> None:
    model = model_of(TEXTS[name])
    graph = model_io.load(model)
    optimize.optimize(graph)
    assert sum(node.op == "Gemm" for node in walk.nodes(graph)) >= 2, "or the test says nothing"
    result = graph_proto.export_model(graph)
    onnx.checker.check_model(result, full_check=True)
    for c in (False, True):
        x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
        feed = {"x": x, "n": np.array(3), "c": np.array(c)}
        feed = {one.name: feed[one.name] for one in model.graph.input}
        np.testing.assert_allclose(run(result, feed), run(model, feed), rtol=1e-5, atol=1e-5)
        conversion.run(result, feed)  # with the fusions that a session makes


@pytest.mark.parametrize("name", TEXTS)
def test_new_names_are_unique_and_stable(name: str) -> None:
    before = walk.Names(model_io.load(model_of(TEXTS[name])))
    results = []
    for _ in range(2):
        graph = model_io.load(model_of(TEXTS[name]))
        optimize.optimize(graph)
        results.append(graph_proto.export_model(graph).SerializeToString(deterministic=True))
    assert results[0] == results[1]
    nodes = list(walk.nodes(graph))
    made = [t.name for node in nodes for t in node.outputs] + [t.name for t in walk.constants(graph)]
    for used in (made, [node.name for node in nodes if node.name]):
        assert [n for n, count in Counter(used).items() if count > 1 and before.is_free(n)] == []
    assert optimize.optimize(graph) == 0


def test_what_fails_the_checker_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(model: onnx.ModelProto) -> onnx.ModelProto:
        made = copy.deepcopy(model)
        made.graph.node.append(model.graph.node[0])
        return made

    monkeypatch.setattr(optimize, "_optimize_model", twice)
    graph = model_io.load(model_of(LINEAR_IN_LOOP))
    before = graph_proto.export_model(graph)
    reason = "the optimized model does not pass onnx.checker: .*single static assignment"
    with pytest.raises(model_io.ModelError, match=reason) as caught:
        optimize.optimize(graph)
    assert "\n" not in str(caught.value)
    assert graph_proto.export_model(graph) == before
