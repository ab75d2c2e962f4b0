"""Fusing matrix products that share their input.

Oracle: the original model. Products of small integers are exact in float32 in any order, so that structure is
tested with equality; for real numbers there is a bound on the rounding of a sum of K products.
"""

from __future__ import annotations

import gc
import tracemalloc

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray

from tests.helpers import fusion
from tests.helpers.shared_input_products import PAIR, PRODUCTS, QKV, RANDOM, WEIGHTS, X, integers
from transforms.fuse_matmul import fuse_matmul


def check_fused(
    body: str, expected: list[str], *, groups: int = 1, x: NDArray = X, opset: int = 17, **types: str
) -> gs.Graph:
    """Fuse, compare operators in order, outputs by value and name, and the second run; return the graph."""
    types = {"inputs": "float[B,T,8] x", "outputs": QKV, **types}
    original = fusion.parse(body, WEIGHTS, opset=opset, **types)
    graph = fusion.load(original)
    assert fuse_matmul(graph) == groups
    assert [node.op for node in graph.nodes] == expected
    assert fuse_matmul(graph) == 0
    fused = fusion.export(graph)
    assert [value.name for value in fused.graph.output] == [value.name for value in original.graph.output]
    for before, after in zip(fusion.run(original, x=x), fusion.run(fused, x=x), strict=True):
        np.testing.assert_array_equal(before, after)
    return graph


def test_products_become_one() -> None:
    graph = check_fused(PRODUCTS, ["MatMul", "Split"])
    product, split = graph.nodes
    assert (product.inputs[1].name, product.inputs[1].shape) == ("wq_fused", (8, 14))
    assert (product.name, split.name) == ("q_fused_matmul", "q_split")
    assert (split.inputs[0].shape, split.inputs[0].dtype) == (["B", "T", 14], np.float32)
    assert split.inputs[1].values.tolist() == [4, 4, 6]
    assert [tensor.name for tensor in split.outputs] == ["q", "k", "v"]


def test_biases_are_concatenated_whatever_their_rank_and_side() -> None:
    body = "a = MatMul(x, wq) q = Add(a, bq) b = MatMul(x, wk) k = Add(bk, b) "
    body += "c = MatMul(x, wv) v = Add(c, scalar)"
    graph = check_fused(body, ["MatMul", "Add", "Split"])
    expected = [*WEIGHTS["bq"], *WEIGHTS["bk"].ravel(), *[WEIGHTS["scalar"]] * 6]
    assert graph.nodes[1].inputs[1].values.tolist() == expected


def test_product_without_bias_gets_zeros() -> None:
    body = "a = MatMul(x, wq) q = Add(a, bq) k = MatMul(x, wk) c = MatMul(x, wv) v = Add(c, bv)"
    graph = check_fused(body, ["MatMul", "Add", "Split"])
    assert graph.nodes[1].inputs[1].values[4:8].tolist() == [0] * 4


def test_result_stands_where_the_first_was_and_order_is_kept() -> None:
    body = "h = Relu(x) q = MatMul(h, wq) n = Neg(q) k = MatMul(h, wk) v = MatMul(h, wv) z = Add(n, k)"
    graph = check_fused(body, ["Relu", "MatMul", "Split", "Neg", "Add"], outputs=f"{QKV}, float[B,T,4] z")
    assert [tensor.name for tensor in graph.nodes[2].outputs] == ["q", "k", "v"]


def test_real_numbers_within_the_bound() -> None:
    """2 K u sum |x||w|: both sums have K products, each sum errs by at most K u sum |x||w|."""
    weights = {name: RANDOM.normal(size=(256, 32)).astype(np.float32) for name in ("wq", "wk")}
    types = {"inputs": "float[B,256] x", "outputs": "float[B,32] q, float[B,32] k"}
    original = fusion.parse(PAIR, weights, **types)
    graph = fusion.load(original)
    assert fuse_matmul(graph) == 1
    x = RANDOM.normal(size=(7, 256)).astype(np.float32)
    results = zip(
        fusion.run(original, x=x), fusion.run(fusion.export(graph), x=x), weights.values(), strict=True
    )
    for before, after, weight in results:
        magnitude = np.abs(x).astype(np.float64) @ np.abs(weight)
        assert np.all(np.abs(before.astype(np.float64) - after) <= 2 * 256 * 2.0**-24 * magnitude)


GEMM = {"inputs": "float[M,8] x", "outputs": "float[M,4] q, float[M,6] k"}


@pytest.mark.parametrize(
    ("body", "operands"),
    [
        ("q = Gemm(x, wq, bq) k = Gemm(x, wv, bv)", 3),
        ("q = Gemm(x, wq) k = Gemm(x, wv)", 2),
        ("q = Gemm(x, wq) k = Gemm(x, wv, bv)", 3),
        ('q = Gemm(x, wq, "") k = Gemm(x, wv, scalar)', 3),
        ("q = Gemm<transB=1, alpha=2.0>(x, tq, bq) k = Gemm<transB=1, alpha=2.0>(x, tk, bv)", 3),
        ("q = Gemm<beta=0.5>(x, wq, bq) k = Gemm<beta=0.5, alpha=1.0>(x, wv, bv)", 3),
    ],
)
def test_gemm(body: str, operands: int) -> None:
    graph = check_fused(body, ["Gemm", "Split"], x=integers(3, 8), **GEMM)
    assert len(graph.nodes[0].inputs) == operands


def test_gemm_with_transposed_input() -> None:
    body = "q = Gemm<transA=1>(x, wq) k = Gemm<transA=1>(x, wv)"
    graph = check_fused(body, ["Gemm", "Split"], x=integers(8, 3), **{**GEMM, "inputs": "float[8,M] x"})
    assert graph.nodes[0].attrs == {"transA": 1}


@pytest.mark.parametrize("opset", [13, 18])
def test_split_in_old_and_new_opsets(opset: int) -> None:
    assert check_fused(PRODUCTS, ["MatMul", "Split"], opset=opset).nodes[1].attrs == {"axis": -1}


def test_weights_of_constant_nodes_go_with_them() -> None:
    body = "w = Constant<value = float[8,1] {1,2,3,4,5,6,7,8}>() "
    body += "u = Constant<value = float[8,1] {1,0,1,0,1,0,1,0}>() "
    body += "keep = Neg(u) q = MatMul(x, w) k = MatMul(x, u)"
    types = {"outputs": "float[B,T,1] q, float[B,T,1] k, float[8,1] keep"}
    check_fused(body, ["Constant", "Neg", "MatMul", "Split"], **types)


def test_weight_that_others_use_stays_for_them() -> None:
    types = {"outputs": "float[B,T,4] q, float[B,T,4] k, float[8,4] other"}
    graph = check_fused(
        "q = MatMul(x, wq) k = MatMul(x, wq) other = Relu(wq)", ["MatMul", "Split", "Relu"], **types
    )
    assert graph.nodes[0].inputs[1].shape == (8, 8)
    np.testing.assert_array_equal(graph.nodes[2].inputs[0].values, WEIGHTS["wq"])


def test_groups_are_kept_apart_by_input_and_operator() -> None:
    body = "y = Relu(x) q = MatMul(x, wq) a = MatMul(y, wq) k = MatMul(x, wk) b = MatMul(y, wk)"
    types = {"outputs": "float[B,T,4] q, float[B,T,4] k, float[B,T,4] a, float[B,T,4] b"}
    check_fused(body, ["Relu", "MatMul", "Split", "MatMul", "Split"], groups=2, **types)


def test_add_that_is_not_alone_in_using_the_product_stays() -> None:
    types = {"outputs": "float[B,T,4] q, float[B,T,4] a, float[B,T,4] k"}
    check_fused("a = MatMul(x, wq) q = Add(a, bq) k = MatMul(x, wk)", ["MatMul", "Split", "Add"], **types)


def test_product_with_two_uses_takes_part_without_its_add() -> None:
    types = {"outputs": "float[B,T,4] q, float[B,T,4] n, float[B,T,4] k"}
    body = "a = MatMul(x, wq) q = Add(a, bq) n = Neg(a) k = MatMul(x, wk)"
    check_fused(body, ["MatMul", "Split", "Add", "Neg"], **types)


def test_add_of_something_else_than_a_row_stays() -> None:
    types = {"inputs": "float[B,5,8] x", "outputs": "float[B,5,4] q, float[B,5,4] k"}
    check_fused("a = MatMul(x, wq) q = Add(a, matrix) k = MatMul(x, wk)", ["MatMul", "Split", "Add"], **types)


def test_bias_that_raises_the_rank_stays() -> None:
    types = {"inputs": "float[M,8] x", "outputs": "float[1,M,4] q, float[M,4] k"}
    check_fused(
        "a = MatMul(x, wk) q = Add(a, bk) k = MatMul(x, wq)", ["MatMul", "Split", "Add"], x=X[0], **types
    )


@pytest.mark.parametrize("dtype", ["float16", "double", "int32"])
def test_other_types(dtype: str) -> None:
    numpy_type = {"double": np.float64}.get(dtype, np.dtype(dtype).type)
    weights = {name: WEIGHTS[name].astype(numpy_type) for name in ("wq", "wk")}
    types = {"inputs": f"{dtype}[B,8] x", "outputs": f"{dtype}[B,4] q, {dtype}[B,4] k"}
    original = fusion.parse(PAIR, weights, **types)
    graph = fusion.load(original)
    assert fuse_matmul(graph) == 1
    assert graph.nodes[0].inputs[1].dtype == numpy_type
    x = integers(3, 8).astype(numpy_type)
    for before, after in zip(fusion.run(original, x=x), fusion.run(fusion.export(graph), x=x), strict=True):
        np.testing.assert_array_equal(before, after)


def test_bfloat16_weights_stay_bfloat16() -> None:
    weights = {name: WEIGHTS[name].astype(ml_dtypes.bfloat16) for name in ("wq", "wk")}
    types = {"inputs": "bfloat16[B,8] x", "outputs": "bfloat16[B,4] q, bfloat16[B,4] k"}
    graph = fusion.load(fusion.parse(PAIR, weights, **types))
    assert fuse_matmul(graph) == 1
    (weight,) = [t for t in fusion.export(graph).graph.initializer if t.name == "wq_fused"]
    assert weight.data_type == onnx.TensorProto.BFLOAT16
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight)[:, 4:].astype(np.float32), WEIGHTS["wk"])


def test_branches_fuse_their_own_products_of_captured_tensors() -> None:
    branches = (
        "then_branch = t () => (float[B,4] s) { a = MatMul(x, wq) b = MatMul(x, wk) s = Add(a, b) }, "
        "else_branch = e () => (float[B,4] d) { c = MatMul(x, wq) d = Relu(c) }"
    )
    original = fusion.parse(
        f"y = If(k)<{branches}>", WEIGHTS, inputs="float[B,8] x, bool k", outputs="float[B,4] y"
    )
    graph = fusion.load(original)
    assert fuse_matmul(graph) == 1
    bodies = graph.nodes[0].attrs
    assert [node.op for node in bodies["then_branch"].nodes] == ["MatMul", "Split", "Add"]
    assert [node.op for node in bodies["else_branch"].nodes] == ["MatMul", "Relu"]
    fused, x = fusion.export(graph), integers(3, 8)
    for choice in (True, False):
        (before,), (after,) = (fusion.run(model, x=x, k=np.array(choice)) for model in (original, fused))
        np.testing.assert_array_equal(before, after)


def test_add_in_a_branch_stays_there() -> None:
    branches = (
        "then_branch = t () => (float[B,4] c) { c = Add(a, bq) }, "
        "else_branch = e () => (float[B,4] d) { d = Relu(q) }"
    )
    types = {"inputs": "float[B,8] x, bool k", "outputs": "float[B,4] q, float[?,?] y"}
    body = f"a = MatMul(x, wq) q = MatMul(x, wk) y = If(k)<{branches}>"
    graph = fusion.load(fusion.parse(body, WEIGHTS, **types))
    assert fuse_matmul(graph) == 1
    assert [node.op for node in graph.nodes] == ["MatMul", "Split", "If"]
    assert [node.op for node in graph.nodes[-1].attrs["then_branch"].nodes] == ["Add"]
    assert len(fusion.run(fusion.export(graph), x=integers(3, 8), k=np.array(True))) == 2


def test_products_in_different_graphs_stay_apart() -> None:
    body = (
        "q = MatMul(x, wq) y = If(k)<then_branch = t () => (float[B,4] c) { c = MatMul(x, wk) }, "
        "else_branch = e () => (float[B,4] d) { d = MatMul(x, wq) }>"
    )
    types = {"inputs": "float[B,8] x, bool k", "outputs": "float[B,4] q, float[B,4] y"}
    assert fuse_matmul(fusion.load(fusion.parse(body, WEIGHTS, **types))) == 0


@pytest.mark.parametrize("rows", [(0, 5), (2, 0), (1, 1)])
def test_dynamic_and_empty_batches(rows: tuple[int, int]) -> None:
    graph = check_fused(PRODUCTS, ["MatMul", "Split"], x=integers(*rows, 8))
    assert graph.nodes[1].outputs[0].shape == ["B", "T", 4]


def test_weights_of_one_group_at_a_time_are_in_memory_twice() -> None:
    """Fusing four groups of 4 MB needs one group more than is there, and half of another as slack."""
    tracemalloc.start()
    try:
        size, body, x = 512, "", "x"
        for i in range(4):
            body += f"a{i} = MatMul({x}, a{i}w) b{i} = MatMul({x}, b{i}w) c{i} = Add(a{i}, b{i}) "
            body += f"d{i} = MatMul({x}, c{i}w) e{i} = MatMul({x}, d{i}w) f{i} = Add(d{i}, e{i}) "
            body += f"g{i} = Add(c{i}, f{i}) "
            x = f"g{i}"
        weights = {f"{name}{i}w": np.zeros((size, size), np.float32) for name in "abcd" for i in range(4)}
        types = {"inputs": f"float[B,{size}] x", "outputs": f"float[B,{size}] g3"}
        graph = fusion.load(fusion.parse(body, weights, **types))
        del weights
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert fuse_matmul(graph) == 4
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    group = 4 * 4 * size * size
    assert peak - before < 1.5 * group


def test_names_are_the_same_every_time() -> None:
    built = fusion.parse(PRODUCTS, WEIGHTS, inputs="float[B,T,8] x", outputs=QKV)
    graphs = [fusion.load(built) for _ in range(2)]
    assert [fuse_matmul(graph) for graph in graphs] == [1, 1]
    first, second = (fusion.export(graph).SerializeToString(deterministic=True) for graph in graphs)
    assert first == second
