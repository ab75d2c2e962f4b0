"""Oracles: the shapes written here, and ONNX Runtime's results before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import conversion
from transforms import model_io
from transforms.fix_shapes import fix_shapes
from transforms.graph import walk
from transforms.lift_constants import lift_constants
from transforms.model import graph_proto
from transforms.optimize import optimize


def _parse(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> main {text}')


ADDS = "(float[N,3] x, float[N,M] y) => (float[N,P] z) { t = Add(x, y) z = Relu(t) }"
RESHAPES = """(float[N,2,6] x) => (float[A,B] y) <int64[1] last = {12}, int64[1] zero = {0}> {
    sizes = Shape(x) first = Gather(sizes, zero) shape = Concat <axis = 0> (first, last)
    y = Reshape(x, shape) }"""
LOOPS = """(float[N,3] x) => (float[N,3] y) <int64 three = {3}, bool yes = {1}> {
    y = Loop (three, yes, x) <body = step (int64 i, bool c, float[N,3] a) => (bool d, float[N,3] b) {
        d = Identity(c) b = Add(a, a) }> }"""


def free_tensors(graph: gs.Graph) -> list[str]:
    """Return the names of inputs and computed tensors with a free dimension."""
    made = (tensor for node in graph.nodes for tensor in node.outputs if not tensor.is_empty())
    return [one.name for one in (*graph.inputs, *made) if not all(isinstance(d, int) for d in one.shape)]


def test_a_named_dimension_is_fixed_wherever_it_stands() -> None:
    graph = model_io.load(_parse(ADDS))
    assert fix_shapes(graph, {"x": (4, 3), "y": (4, 3)}) == 3
    made = graph_proto.export_model(graph)
    declared = [*made.graph.input, *made.graph.output]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in declared}
    assert shapes == {"x": [4, 3], "y": [4, 3], "z": [4, 3]}
    assert [list(node.outputs[0].shape) for node in graph.nodes] == [[4, 3], [4, 3]]
    assert fix_shapes(graph, {"x": (4, 3)}) == 0


def test_an_input_that_is_an_output_keeps_both_declarations() -> None:
    text = "(float[2,3] x, float[N,3] y) => (float[A,B] x, float[2,3] z, float[C,D] y) { z = Relu(x) }"
    model = _parse(text)
    graph = model_io.load(model)
    made = graph_proto.export_model(graph)
    assert list(made.graph.input) == list(model.graph.input)
    assert list(made.graph.output) == list(model.graph.output)
    assert fix_shapes(graph, {"y": (5, 3)}) == 1
    made = graph_proto.export_model(graph)
    for value in (made.graph.input[1], made.graph.output[2]):
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [5, 3]


def test_an_input_that_is_not_listed_takes_the_size_of_its_names() -> None:
    graph = model_io.load(_parse(ADDS))
    assert fix_shapes(graph, {"x": (4, 3)}) == 2
    assert [list(tensor.shape) for tensor in graph.inputs] == [[4, 3], [4, "M"]]
    assert free_tensors(graph)[0] == "y"


@pytest.mark.parametrize(("text", "shape"), [(RESHAPES, (5, 2, 6)), (LOOPS, (5, 3))])
def test_sizes_are_carried_through_and_results_stay(
    text: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    model = _parse(text)
    graph = model_io.load(model)
    assert fix_shapes(graph, {"x": shape}) == 1
    assert not [name for name in free_tensors(graph) if name != "sizes"]
    assert graph.outputs[0].shape[0] == 5
    lift_constants(graph)
    optimize(graph)
    assert "Shape" not in {node.op for node in walk.nodes(graph)}, "sizes are constants now"
    model_io.save(graph, tmp_path / "fixed.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    expected = conversion.run(model, feeds)
    assert conversion.same(conversion.run(onnx.load(tmp_path / "fixed.onnx"), feeds), expected)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"w": (1, 3)}, r"input 'w' is unknown, legal are x, y"),
        ({"x": (1, 3, 1)}, r"input 'x' has 2 dimensions, \[1, 3, 1\] has 3"),
        ({"x": (1, 4)}, r"input 'x': dimension 1 is 3, it cannot be 4"),
        ({"x": (1, 3), "y": (2, 3)}, r"dimension 'N' is 1 in input 'x' and 2 in 'y'"),
        ({"x": (1, 3), "y": (1, 5)}, r"the shapes x:1,3, y:1,5 contradict the model: [^\n]*Add"),
    ],
)
def test_contradictions_are_refused_in_one_line(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    graph = model_io.load(_parse(ADDS))
    with pytest.raises(ValueError, match=message) as caught:
        fix_shapes(graph, shapes)
    assert "\n" not in str(caught.value)


def test_a_reshape_to_another_number_of_elements_is_refused() -> None:
    text = "(float[N,4] x) => (float[1,4] y) <int64[2] s = {1, 4}> { y = Reshape(x, s) }"
    with pytest.raises(
        ValueError, match=r"x:2,4 contradict the model: Reshape 'y' makes \[1, 4\] of \[2, 4\]"
    ):
        fix_shapes(model_io.load(_parse(text)), {"x": (2, 4)})


def test_a_declared_output_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="contradict the model"):
        fix_shapes(model_io.load(_parse("(float[N,4] x) => (float[1,4] y) { y = Relu(x) }")), {"x": (2, 4)})


def test_an_input_without_declared_rank_takes_any() -> None:
    model = _parse("(float[N] x) => (float[M] y) { y = Relu(x) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    graph = model_io.load(model)
    assert fix_shapes(graph, {"x": (2, 4)}) == 1
    assert free_tensors(graph) == []
