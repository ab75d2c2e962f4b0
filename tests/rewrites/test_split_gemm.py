"""Gemm to MatMul and Add. Oracle: alpha A B + beta C in float64, within the rounding bound of float32."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import build, conversion
from transforms import model_io
from transforms.split_gemm import split_gemm

RANDOM = np.random.default_rng(2)
A, B, C = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4, 5), (5,)))


def gemm(stored: str, **attributes: float) -> onnx.ModelProto:
    """Return a Gemm whose operands are inputs, but for those that are stored."""
    left = A.T if attributes.get("transA") else A
    right = B.T if attributes.get("transB") else B
    arrays = {"a": np.ascontiguousarray(left), "b": np.ascontiguousarray(right), "c": C}
    node = onnx.helper.make_node("Gemm", list(arrays), ["y"], "dense", **attributes)
    inputs = [build.value(name, array.shape) for name, array in arrays.items() if name not in stored]
    weights = {name: arrays[name] for name in stored}
    return build.model([node], inputs, [build.value("y", (3, 5))], weights)


@pytest.mark.parametrize("stored", ["", "bc", "c"])
@pytest.mark.parametrize("turns", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, 3.0), (0.5, 0.0)])
def test_every_attribute(stored: str, turns: tuple[int, int], alpha: float, beta: float) -> None:
    model = gemm(stored, transA=turns[0], transB=turns[1], alpha=alpha, beta=beta)
    graph = model_io.load(model)
    count, split = conversion.rewritten(graph, split_gemm)
    operators = [node.op for node in graph.nodes]
    assert count == 1 and "Gemm" not in operators
    assert operators.count("Transpose") == turns[0] + (turns[1] if "b" not in stored else 0)
    assert operators.count("Mul") == (alpha != 1) + (beta not in (0, 1) and "c" not in stored)
    assert next(node.name for node in graph.nodes if node.op == "MatMul") == "dense"
    arrays = {"a": A.T if turns[0] else A, "b": B.T if turns[1] else B, "c": C}
    feeds = {value.name: np.ascontiguousarray(arrays[value.name]) for value in model.graph.input}
    exact = alpha * (A.astype(np.float64) @ B) + beta * C
    bound = 2.0**-24 * 8 * (np.abs(A) @ np.abs(B) + 3 * np.abs(C))
    assert (np.abs(conversion.run(split, feeds)["y"] - exact) <= bound).all()


def test_without_a_bias_it_is_the_product_alone() -> None:
    node = onnx.helper.make_node("Gemm", ["a", "b"], ["y"])
    ends = build.value("a", (3, 4)), build.value("y", (3, 5))
    graph = model_io.load(build.model([node], ends[:1], ends[1:], {"b": B}))
    assert split_gemm(graph) == 1
    assert [node.op for node in graph.nodes] == ["MatMul"]


def test_before_opset_7_nothing_changes() -> None:
    node = onnx.helper.make_node("Gemm", ["a", "b", "c"], ["y"], broadcast=1)
    ends = build.value("a", (3, 4)), build.value("y", (3, 5))
    graph = model_io.load(build.model([node], ends[:1], ends[1:], {"b": B, "c": C}, opset=6))
    assert split_gemm(graph) == 0 and [node.op for node in graph.nodes] == ["Gemm"]


def test_integers_and_nodes_that_are_left_out_stay() -> None:
    node = onnx.helper.make_node("Gemm", ["a", "b"], ["y"])
    ends = build.value("a", (3, 4), np.int32), build.value("y", (3, 5), np.int32)
    graph = model_io.load(build.model([node], ends[:1], ends[1:], {"b": B.astype(np.int32)}))
    assert split_gemm(graph) == 0
    assert split_gemm(model_io.load(gemm("bc")), exclude="dense") == 0
