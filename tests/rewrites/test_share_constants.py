"""Oracle: the arrays of the file, and ONNX Runtime on the model as it was."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tests.helpers import build
from transforms.graph.proto_graphs import each_graph
from transforms.model import graph_proto
from transforms.share_constants import share_constants

W = np.arange(400, dtype=np.float32).reshape(20, 20) / 400


def _chosen(*weights: np.ndarray) -> onnx.ModelProto:
    """Return a choice of products, each body with a weight ``w`` of its own."""
    end = build.value("y", [1, 20])
    bodies = {}
    for side, values in zip(("then", "else"), weights, strict=True):
        product = helper.make_node("MatMul", ["x", "w"], [f"{side}_y"], side)
        ends, stored = [build.value(f"{side}_y", [1, 20])], [numpy_helper.from_array(values, "w")]
        bodies[f"{side}_branch"] = helper.make_graph([product], side, [], ends, stored)
    choice = helper.make_node("If", ["c"], ["y"], "choice", **bodies)
    return build.model([choice], [build.value("x", [1, 20]), build.value("c", [], np.bool_)], [end])


def _shared(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    graph = graph_proto.import_model(model)
    count = share_constants(graph)
    assert share_constants(graph) == 0
    return graph_proto.export_model(graph), count


def test_copies_in_bodies_become_one_around_them() -> None:
    before = _chosen(W, W.copy())
    after, count = _shared(before)
    assert count == 1
    assert [t.dims[0] for g in each_graph(after.graph) for t in g.initializer] == [20]
    onnx.checker.check_model(after, full_check=True)
    for c in (True, False):
        feed = {"x": np.ones((1, 20), np.float32), "c": np.array(c)}
        runs = [onnxruntime.InferenceSession(m.SerializeToString()).run(None, feed) for m in (before, after)]
        np.testing.assert_array_equal(*runs)


def test_other_numbers_and_zeros_of_another_sign_stay_apart() -> None:
    signed = W.copy()
    signed[0, 0] = -0.0
    for other in (W + 1, signed):
        assert _shared(_chosen(W, other))[1] == 0


def test_a_matrix_of_several_products_is_stored_once() -> None:
    """Those that other nodes read, and vectors, stay as they are."""
    weights = (
        {f"w{i}": W for i in range(3)} | {"added": W} | {f"v{i}": np.ones(400, np.float32) for i in range(2)}
    )
    nodes = [helper.make_node("MatMul", [f"y{i}" if i else "x", f"w{i}"], [f"y{i + 1}"]) for i in range(3)]
    nodes += [helper.make_node("Add", ["y3", "added"], ["z"])]
    nodes += [helper.make_node("Mul", ["u", "v0"], ["u1"]), helper.make_node("Mul", ["u1", "v1"], ["u2"])]
    ends = [build.value("z", [20, 20]), build.value("u2", [400])]
    before = build.model(nodes, [build.value("x", [20, 20]), build.value("u", [400])], ends, weights)
    after, count = _shared(before)
    assert count == 2
    assert {t.name for t in after.graph.initializer} == {"w0", "added", "v0", "v1"}
    feed = {"x": np.eye(20, dtype=np.float32), "u": np.ones(400, np.float32)}
    runs = [onnxruntime.InferenceSession(m.SerializeToString()).run(None, feed) for m in (before, after)]
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
