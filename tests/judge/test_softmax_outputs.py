"""Outputs that end in a Softmax. Oracle: graphs written down here, and ONNX Runtime's numbers."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime
import pytest

from tests.helpers import plans
from transforms.judge.softmax_outputs import in_both, show_before_softmax, softmax_outputs
from transforms.model import graph_proto

HEAD = "(float[2,6] x) => (float[2,6] y) { z = MatMul(x, w) "
ENDS = {
    "Softmax": "y = Softmax <axis = -1> (z) }",
    "moved": "s = Softmax <axis = 1> (z) a = Flatten(s) y = Identity(a) }",
    "written out": "m = ReduceMax <axes = [1]> (z) d = Sub(z, m) e = Exp(d) t = ReduceSum <axes = [1]> (e) "
    "y = Div(e, t) }",
}


def _graph(end: str) -> gs.Graph:
    return plans.graph(HEAD + end, {"w": (6, 6)}, opset=11 if "Reduce" in end else 17)


def _run(graph: gs.Graph) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(graph_proto.export_model(graph).SerializeToString())
    return session.run(None, {"x": np.arange(12, dtype=np.float32).reshape(2, 6) / 5})


@pytest.mark.parametrize("end", ENDS)
def test_what_is_before_it_is_shown_beside_or_alone(end: str) -> None:
    graph = _graph(ENDS[end])
    (probabilities,) = _run(graph)
    assert {name: tensor.name for name, tensor in softmax_outputs(graph).items()} == {"y": "z"}
    (name,) = show_before_softmax(graph, ["y"])
    assert [tensor.name for tensor in graph.outputs] == ["y", name]
    first, logits = _run(graph)
    np.testing.assert_array_equal(first, probabilities)
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(exponents / exponents.sum(1, keepdims=True), probabilities, rtol=1e-5)
    alone = _graph(ENDS[end])
    assert show_before_softmax(alone, ["y"], alone=True) == [name]
    (only,) = _run(alone)
    np.testing.assert_array_equal(only, logits)
    assert [tensor.name for tensor in alone.outputs] == [name]


@pytest.mark.parametrize("end", ["y = Sigmoid(z) }", "s = Softmax(z) y = Mul(s, x) }", "y = Div(z, x) }"])
def test_other_outputs_stay(end: str) -> None:
    assert not softmax_outputs(_graph(end))


def test_a_softmax_of_an_input_tells_nothing_of_a_model() -> None:
    graph = plans.graph(
        "(float[2,6] x) => (float[2,6] y, float[2,6] z) { y = Softmax(x) z = MatMul(x, w) }", {"w": (6, 6)}
    )
    assert not softmax_outputs(graph)


def test_it_is_one_in_both_models_or_in_none() -> None:
    one, other = _graph(ENDS["Softmax"]), _graph("y = Sigmoid(z) }")
    assert in_both(one, _graph(ENDS["written out"])) == ["y"] and not in_both(one, other)


def test_numbers_on_the_grid_of_probabilities_are_looked_through() -> None:
    """A grid of probabilities says nothing of what is before them."""
    step = "c = Constant <value_float = 0.004> () "
    grid = _graph(step + "s = Softmax(z) q = QuantizeLinear(s, c) y = DequantizeLinear(q, c) }")
    bfloat16 = _graph("s = Softmax(z) b = Cast <to = 16> (s) y = Cast <to = 1> (b) }")
    for graph in (grid, bfloat16):
        assert [tensor.name for tensor in softmax_outputs(graph).values()] == ["z"]


def test_classes_are_no_probabilities() -> None:
    head = "(float[2,6] x) => (int64[2,6] y) { z = MatMul(x, w) "
    assert not softmax_outputs(plans.graph(head + "s = Softmax(z) y = Cast <to = 7> (s) }", {"w": (6, 6)}))
