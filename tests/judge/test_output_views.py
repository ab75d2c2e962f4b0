"""What is compared beside the outputs. Oracle: the graph, drawn by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.helpers import plans
from transforms import model_io
from transforms.judge.constants import FEW_NUMBERS
from transforms.judge.output_views import views_of
from transforms.judge.reference import Reference

node = helper.make_node


def grade(hidden: int, *, shapes: bool = True, last: str = "Relu") -> onnx.ModelProto:
    """Return a model x [N, 48] -> hidden -> 2 grades -> their mean, with or without shapes of tensors."""
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in {"w1": (48, 64), "w2": (64, hidden), "w3": (hidden, 2)}.items()
    }
    nodes = [
        node("MatMul", ["x", "w1"], ["h1"]),
        node("Relu", ["h1"], ["a1"]),
        node("MatMul", ["a1", "w2"], ["h2"]),
        node(last, ["h2"], ["a2"]),
        node("MatMul", ["a2", "w3"], ["h3"]),
        node("ReduceMean", ["h3"], ["y"], axes=[1], keepdims=0),
    ]
    sizes = [48] if shapes else ["width"]
    ends = [helper.make_tensor_value_info(name, 1, s) for name, s in (("x", ["N", *sizes]), ("y", ["N"]))]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "grade", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize(("hidden", "view"), [(32, "a2"), (8, "a1")])
def test_a_grade_is_seen_with_the_nearest_many_numbers(shapes: bool, hidden: int, view: str) -> None:
    graph = model_io.load(grade(hidden, shapes=shapes))
    if not shapes:
        for tensor in graph.tensors().values():
            if tensor.name in ("a1", "a2", "h2", "h3"):
                tensor.shape = None
    assert views_of(graph) == {view: "y"}


def test_what_an_output_saturates_comes_first() -> None:
    built = grade(40)
    built.graph.node[-1].CopyFrom(node("Sigmoid", ["h3"], ["y"]))
    built.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, ["N", 2]))
    assert views_of(model_io.load(built)) == {"h3": "", "a2": "y"}


@pytest.mark.parametrize(
    "written",
    [
        "m = ReduceMax <axes = [1]> (h) s = Sub(h, m) e = Exp(s) t = ReduceSum(e, axis) y = Div(e, t)",
        "e = Exp(h) t = ReduceSum(e, axis) y = Div(e, t)",
    ],
)
def test_a_softmax_that_is_written_out_is_seen_as_one(written: str) -> None:
    def _views(nodes: str) -> dict[str, str]:
        text = f"(float[2,8] x) => (float[2,600] y) {{ h = MatMul(x, w) {nodes} }}"
        return views_of(plans.graph(text, {"w": (8, 600), "axis": np.array([1])}, opset=17))

    assert _views(written) == _views("y = Softmax(h)") == {"h": ""}


def test_an_output_of_many_numbers_says_enough() -> None:
    graph = model_io.load(grade(40))
    graph.outputs[0].shape = ["N", FEW_NUMBERS]
    assert views_of(graph) == {}


@pytest.mark.parametrize(("rows", "views"), [(FEW_NUMBERS - 1, ["a2"]), (FEW_NUMBERS, [])])
def test_samples_tell_how_many_numbers_an_output_has(rows: int, views: list[str]) -> None:
    """The length of its axis is that of the batch, which no shape tells."""
    feeds = [{"x": np.ones((rows, 48), np.float32)}] * 2
    floats = Reference(model_io.load(grade(40)), feeds, None)
    assert floats.views == views and floats.shown == ["y", *views]
