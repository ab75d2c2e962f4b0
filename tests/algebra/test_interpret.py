"""The symbolic layer under the fusions: polynomials, statistics, constants, provable dimensions.

Oracle for polynomials: the same arithmetic on random numbers in float64.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import fusion
from transforms.algebra import polynomial as quantities
from transforms.algebra.interpret import ALIGNED, REDUCED, interpret, make_context
from transforms.algebra.polynomial import ONE, Monomial, Polynomial, Symbol, is_close, monomial
from transforms.graph import shapes
from transforms.graph.constants import Constants

A, B = Symbol("a"), Symbol("b")
VALUES = {A: 1.7, B: -0.6}
SAMPLES = [
    Polynomial.symbol(A),
    Polynomial({monomial(a=1): np.asarray(2.0), monomial(b=2): np.array([1.0, -3.0])}),
    Polynomial({ONE: np.asarray(0.5), monomial(a=-1, b=1): np.asarray(4.0)}),
    Polynomial({}),
]


def evaluate(polynomial: Polynomial) -> np.ndarray:
    """Put numbers in for the symbols."""

    def product(factors: Monomial) -> float:
        return float(np.prod([VALUES[symbol] ** power for symbol, power in factors]))

    return sum((c * product(m) for m, c in polynomial.terms.items()), np.asarray(0.0))


@pytest.mark.parametrize(("left", "right"), list(itertools.product(SAMPLES, repeat=2)))
def test_arithmetic(left: Polynomial, right: Polynomial) -> None:
    a, b = evaluate(left), evaluate(right)
    np.testing.assert_allclose(evaluate(left + right), a + b, rtol=1e-14)
    np.testing.assert_allclose(evaluate(left - right), a - b, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(evaluate(left * right), a * b, rtol=1e-14)


def test_what_cancels_is_gone() -> None:
    third = Polynomial.constant(np.float32(1 / 3)) * Polynomial.symbol(A)
    rest = Polynomial.symbol(A) - third - third - third
    assert rest.terms == {}
    assert (SAMPLES[1] - SAMPLES[1]).terms == {}
    assert (Polynomial.constant([1.0, 2.0]) - Polynomial.constant([1.0, 1.0])).get(ONE).tolist() == [0, 1]


def test_comparison_is_relative() -> None:
    assert is_close([1e-9, 1.0], [1e-9 * (1 + 1e-7), 1.0], 1e-6)
    assert not is_close([1e-9, 1.0], [2e-9, 1.0], 1e-6)
    assert SAMPLES[0].is_close({monomial(a=1): 1 + 1e-7}, 1e-6)
    assert not SAMPLES[0].is_close({monomial(a=1): 1, ONE: 0}, 1e-6)


VARIANCE = Polynomial({monomial(square=1): np.asarray(1.0), monomial(mean=2): np.asarray(-1.0)})
X = Polynomial.symbol(quantities.X)


def test_both_variances_are_one_form() -> None:
    mean = quantities.mean(X)
    assert mean is not None
    centred = quantities.mean((X - mean) * (X - mean))
    square = quantities.mean(X * X)
    assert centred is not None and square is not None
    for form in (centred, square - mean * mean):
        assert quantities.variance_form(form, 1e-6) == (1.0, Symbol(quantities.RSQRT, 0.0))


def test_variance_form_wants_all_of_it() -> None:
    scaled = (VARIANCE + Polynomial.constant(0.5)) * Polynomial.constant(3)
    assert quantities.variance_form(scaled, 1e-6) == (3.0, Symbol(quantities.RSQRT, pytest.approx(0.5)))
    for other in (-VARIANCE, VARIANCE - Polynomial.constant(1), VARIANCE + X, X, Polynomial({})):
        assert quantities.variance_form(other, 1e-6) is None
    assert quantities.variance_form(VARIANCE * Polynomial.constant([1.0, 2.0]), 1e-6) is None


def test_powers_and_inverses() -> None:
    shifted = VARIANCE + Polynomial.constant(0.25)
    root = Symbol(quantities.RSQRT, 0.25)
    for exponent, power in ((0.5, -1), (-0.5, 1), (-1, 2)):
        result = quantities.power(shifted, Polynomial.constant(exponent), 1e-6)
        assert result is not None and result.is_close({((root, power),): 1.0}, 1e-12)
    assert quantities.power(X, Polynomial.constant(3), 1e-6) == X * X * X
    assert quantities.power(X, Polynomial.constant(4), 1e-6) is None
    assert quantities.square_root(X * X, 1e-6) is None
    assert quantities.inverse(X + VARIANCE, 1e-6) is None
    assert quantities.inverse(Polynomial.constant([1.0, 0.0]), 1e-6) is None


def test_mean_of_what_has_no_name() -> None:
    assert quantities.mean(X * X * X) is None
    assert quantities.mean(X * Polynomial.constant([1.0, 2.0])) is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("c = Constant<value = float[2] {1, 2}>()", [1, 2]),
        ("c = Constant<value_float = 3.0>()", 3),
        ("c = Constant<value_floats = [3.0, 4.0]>()", [3, 4]),
        ("c = Constant<value_int = 3>() d = Cast<to=1>(c)", 3),
        ("c = Constant<value_ints = [3, 4]>() d = Cast<to=1>(c)", [3, 4]),
        ("c = Neg(x)", None),
    ],
)
def test_constant_nodes(source: str, expected: object) -> None:
    last = "d" if "d =" in source else "c"
    built = fusion.parse(f"{source} y = Add(x, {last})", {}, inputs="float[2] x", outputs="float[2] y")
    graph = fusion.load(built)
    tensor, constants = graph.nodes[0].outputs[0], Constants(graph)
    values = constants.values(tensor)
    assert (None if values is None else values.tolist()) == expected
    assert constants.shape(tensor) == (None if values is None else values.shape)
    assert constants.scalar(tensor) == (expected if isinstance(expected, int) else None)


def test_constants_keep_their_type_and_can_be_overridden() -> None:
    array = np.ones(3, ml_dtypes.bfloat16)
    built = fusion.parse("y = Add(x, w)", {"w": array}, inputs="bfloat16[3] x", outputs="bfloat16[3] y")
    graph = fusion.load(built)
    tensor = graph.nodes[0].inputs[1]
    constants = Constants(graph)
    assert constants.element_type(tensor) == onnx.TensorProto.BFLOAT16
    values = constants.values(tensor)
    assert values is not None and values.dtype == array.dtype
    assert constants.element_type(graph.inputs[0]) is None
    graph.inputs.append(tensor)
    assert Constants(graph).values(tensor) is None


def test_size_of_the_last_axis_follows_from_weights() -> None:
    unknown = gs.Variable("x", np.float32, None)
    weight, one = gs.Constant("w", np.ones((3, 5), np.float32)), gs.Constant("c", np.ones((), np.float32))
    product, scaled, normal = (gs.Variable(name, np.float32, None) for name in ("p", "s", "n"))
    nodes = [
        gs.Node("MatMul", inputs=[unknown, weight], outputs=[product]),
        gs.Node("Mul", inputs=[one, product], outputs=[scaled]),
        gs.Node("Softmax", inputs=[scaled], outputs=[normal]),
    ]
    assert len(nodes) == 3
    assert [shapes.size(tensor, -1) for tensor in (unknown, product, normal)] == [None, 5, 5]
    assert shapes.size(normal, -2) is None
    assert shapes.size(gs.Variable("k", np.float32, ["N", 4]), -2) is None


@pytest.mark.parametrize(
    ("attributes", "rank", "expected"),
    [
        ({"axes": [-1]}, None, (-1,)),
        ({"axes": [2, 0]}, 3, (-3, -1)),
        ({"axes": [1]}, None, None),
        ({}, 2, (-2, -1)),
        ({}, None, None),
        ({"noop_with_empty_axes": 1}, 2, None),
    ],
)
def test_reduced_axes(attributes: dict[str, object], rank: int | None, expected: object) -> None:
    x = gs.Variable("x", np.float32, None)
    node = gs.Node("ReduceMean", attrs=attributes, inputs=[x], outputs=[gs.Variable("y")])
    assert shapes.reduced_axes(node, rank, Constants(gs.Graph([node], [x]))) == expected


def test_interpretation_of_a_graph() -> None:
    body = "m = ReduceMean<axes=[1], keepdims=0>(x) d = Mul(m, w) k = Unsqueeze(m, axis) y = Sub(x, k) "
    body += "z = Exp(y) o = Add(z, d)"
    weights = {"w": np.ones(3, np.float32), "axis": np.array([1])}
    graph = fusion.load(fusion.parse(body, weights, inputs="float[3,3] x", outputs="float[3,3] o"))
    context = make_context(graph.inputs[0], (-1,))
    assert context is not None
    values = interpret(context, Constants(graph))
    named = {node.outputs[0].name: values.get(id(node.outputs[0])) for node in graph.nodes}
    assert {name for name, value in named.items() if value is None} == {"d", "z", "o"}
    m, y = named["m"], named["y"]
    assert m is not None and (m.layout, m.polynomial.terms.keys()) == (REDUCED, {monomial(mean=1)})
    assert y is not None and y.layout == ALIGNED
    assert y.polynomial.is_close({monomial(x=1): 1, monomial(mean=1): -1}, 0)
