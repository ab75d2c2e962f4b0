"""Oracle: the products themselves in ONNX Runtime, on integers, which float32 adds exactly.

Exchanging numbers along the axis of the sum in both operands changes nothing; doubling the numbers of one
channel doubles that channel of the result and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from ops.array_types import Float32Array
from tests.helpers import build, conversion, plans
from transforms.graph import dot_products


@dataclass(frozen=True)
class Product:
    """A dot product: shapes of operands, sum axes, the channel axis of each in itself and in the result."""

    op: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    sums: tuple[int, int]
    channels: tuple[tuple[int, int] | None, tuple[int, int] | None]
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> gs.Node:
        """The product as a node of a graph."""
        return gs.Node(self.op, attrs=self.attrs)

    def run(self, x: Float32Array, w: Float32Array) -> Float32Array:
        """Return the result."""
        made = helper.make_node(self.op, ["x", "w"], ["y"], **self.attrs)
        ends = [build.value("x", x.shape), build.value("w", w.shape)]
        graph = helper.make_graph([made], "graph", ends, [helper.make_empty_tensor_value_info("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return conversion.run(model, {"x": x, "w": w})["y"]

    def operands(self) -> tuple[Float32Array, Float32Array]:
        """Return small integers."""
        random = np.random.default_rng(2)
        x, w = (random.integers(-9, 10, shape).astype(np.float32) for shape in self.shapes)
        return x, w


PRODUCTS = {
    "conv": Product("Conv", ((2, 3, 5, 5), (4, 3, 3, 3)), (1, 1), (None, (0, 1))),
    "conv 1d": Product("Conv", ((2, 3, 5), (4, 3, 3)), (1, 1), (None, (0, 1))),
    "conv, groups": Product("Conv", ((2, 6, 5, 5), (4, 3, 3, 3)), (1, 1), (None, (0, 1)), {"group": 2}),
    "transposed conv": Product("ConvTranspose", ((2, 3, 5, 5), (3, 4, 3, 3)), (1, 0), (None, (1, 1))),
    "transposed conv, one group": Product(
        "ConvTranspose", ((2, 3, 5, 5), (3, 4, 3, 3)), (1, 0), (None, (1, 1)), {"group": 1}
    ),
    "gemm": Product("Gemm", ((5, 3), (3, 4)), (1, 0), ((0, 0), (1, 1))),
    "gemm, A transposed": Product("Gemm", ((3, 5), (3, 4)), (0, 0), ((1, 0), (1, 1)), {"transA": 1}),
    "gemm, B transposed": Product("Gemm", ((5, 3), (4, 3)), (1, 1), ((0, 0), (0, 1)), {"transB": 1}),
    "gemm, both transposed": Product(
        "Gemm", ((3, 5), (4, 3)), (0, 1), ((1, 0), (0, 1)), {"transA": 1, "transB": 1}
    ),
    "matmul": Product("MatMul", ((5, 3), (3, 4)), (1, 0), ((0, 0), (1, 1))),
    "matmul of stacks": Product("MatMul", ((2, 5, 3), (2, 3, 4)), (2, 1), (None, None)),
    "matmul of images": Product("MatMul", ((1, 2, 5, 3), (3, 4)), (3, 0), (None, (1, 3))),
    "matmul, vector on the left": Product("MatMul", ((3,), (3, 4)), (0, 0), (None, (1, 0))),
    "matmul, vector on the right": Product("MatMul", ((5, 3), (3,)), (1, 0), ((0, 0), None)),
    "matmul of vectors": Product("MatMul", ((3,), (3,)), (0, 0), (None, None)),
}


def permuted(x: Float32Array, axis: int, length: int) -> Float32Array:
    """Reverse each run of that many numbers along an axis."""
    order = np.arange(x.shape[axis]).reshape(-1, length)[:, ::-1].reshape(-1)
    return np.take(x, order, axis)


@pytest.mark.parametrize("name", PRODUCTS)
def test_sum_axis(name: str) -> None:
    product = PRODUCTS[name]
    x, w = product.operands()
    found = [dot_products.sum_axis(product.node, i, len(product.shapes[i])) for i in range(2)]
    assert tuple(found) == product.sums
    length = w.shape[found[1]]  # of one group
    assert x.shape[found[0]] % length == 0
    exchanged = product.run(permuted(x, found[0], length), permuted(w, found[1], length))
    assert np.array_equal(exchanged, product.run(x, w))


@pytest.mark.parametrize("index", (0, 1))
@pytest.mark.parametrize("name", PRODUCTS)
def test_channel_axis(name: str, index: int) -> None:
    product, wanted = PRODUCTS[name], PRODUCTS[name].channels[index]
    operands = list(product.operands())
    axis = dot_products.channel_axis(product.node, index, operands[index].ndim)
    assert axis == (None if wanted is None else wanted[0])
    if wanted is None:
        return
    expected = product.run(*operands).copy()
    np.moveaxis(expected, wanted[1], 0)[1] *= 2
    operands[index] = operands[index].copy()
    np.moveaxis(operands[index], wanted[0], 0)[1] *= 2
    assert np.array_equal(product.run(*operands), expected)


def test_a_grouped_transposed_conv_has_no_channel_axis() -> None:
    """Its axis 1 counts the channels of one group: doubling an index there doubles one of each group."""
    product = Product("ConvTranspose", ((1, 4, 5), (4, 3, 2)), (1, 0), (None, None), {"group": 2})
    assert dot_products.channel_axis(product.node, 1, 3) is None
    x, w = product.operands()
    expected = product.run(x, w).copy()
    expected[:, [1, 4]] *= 2
    w[:, 1] *= 2
    assert np.array_equal(product.run(x, w), expected)


@pytest.mark.parametrize(
    ("op", "attrs", "axes"),
    (
        ("MatMul", {}, (-1, -2)),
        ("Gemm", {}, (-1, -2)),
        ("Gemm", {"transA": 1, "transB": 1}, (-2, -1)),
        ("Conv", {}, (1, 1)),
        ("ConvTranspose", {}, (1, 0)),
    ),
)
def test_sum_axis_of_unknown_rank_counts_from_the_end(
    op: str, attrs: dict[str, int], axes: tuple[int, int]
) -> None:
    node = gs.Node(op, attrs=attrs)
    assert tuple(dot_products.sum_axis(node, index, None) for index in range(2)) == axes


@pytest.mark.parametrize(
    ("op", "domain", "is_product"),
    (
        ("Conv", None, True),
        ("ConvTranspose", "", True),
        ("Gemm", "ai.onnx", True),
        ("MatMul", None, True),
        ("Conv", "com.acme", False),
        ("MatMulInteger", None, False),
        ("LSTM", None, False),
        ("Add", None, False),
    ),
)
def test_which_nodes_are_dot_products(op: str, domain: str | None, is_product: bool) -> None:
    assert dot_products.is_dot_product(gs.Node(op, domain=domain)) is is_product


@pytest.mark.parametrize(
    ("call", "weight"),
    (("MatMul(x, w)", 1), ("MatMul(w, x)", 0), ("MatMul(x, x)", None), ("Gemm(w, v, x)", 1)),
)
def test_which_operand_is_the_weight(call: str, weight: int | None) -> None:
    graph = plans.graph(f"(float[3,3] x) => (float[3,3] y) {{ y = {call} }}", {"w": (3, 3), "v": (3, 3)})
    assert dot_products.weight_index(graph.nodes[0]) == weight


def test_bias_and_operands() -> None:
    text = "(float[3,3] x) => (float[3,3] y, float[3,3] z) { y = Gemm(x, w, b) z = Gemm(x, w) }"
    graph = plans.graph(text, {"w": (3, 3), "b": (3,)})
    with_bias, without = graph.nodes
    assert [dot_products.is_operand(with_bias, index) for index in range(3)] == [True, True, False]
    bias = dot_products.bias(with_bias)
    assert bias is not None
    assert bias.name == "b"
    assert dot_products.bias(without) is None
    without.inputs.append(gs.Variable.empty())
    assert dot_products.bias(without) is None
