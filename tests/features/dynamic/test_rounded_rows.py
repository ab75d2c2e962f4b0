"""Oracle: what quantize_dynamic writes, and graphs that differ from it in one node."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import numpy_helper, parser

from transforms.features.dynamic.rounded_rows import rounded_rows
from transforms.model import graph_proto
from transforms.quantize_dynamic import quantize_dynamic


def written(before: str = "Identity") -> gs.Graph:
    text = f"""<ir_version: 9, opset_import: ["": 20]> g (float[t,8] x) => (float[t,4] y, float[t,4] z)
        {{ h = {before}(x) a = DequantizeLinear<axis=1>(A, s) b = DequantizeLinear<axis=1>(B, s)
        y = MatMul(h, a) z = MatMul(h, b) }}"""
    model = parser.parse_model(text)
    weight = np.arange(-16, 16, dtype=np.int8).reshape(8, 4)
    for name, values in {"A": weight, "B": -weight, "s": np.full(4, 0.1, np.float32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    graph = graph_proto.import_model(model)
    assert quantize_dynamic(graph) == 2
    return graph


@pytest.mark.parametrize(
    ("before", "measured"),
    [("Identity", ["Abs", "ReduceMax", "Max", "Div"]), ("Relu", ["ReduceMax", "Max", "Div"])],
)
def test_they_are_found_with_their_products(before: str, measured: list[str]) -> None:
    [found] = rounded_rows(written(before))
    assert found.source.inputs[0].op == before
    assert [node.op for node in found.measured] == measured
    assert [(a.op, b.op, b.outputs[0].name) for a, b in found.products] == [
        ("MatMul", "Mul", "y"),
        ("MatMul", "Mul", "z"),
    ]
    assert [node.op for node in found.nodes] == [*measured, "Mul", "Mul"]


@pytest.mark.parametrize(("op", "other"), [("Mul", "Add"), ("ReduceMax", "ReduceMean"), ("Max", "Min")])
def test_other_nodes_are_left_alone(op: str, other: str) -> None:
    graph = written()
    next(node for node in graph.nodes if node.op == op).op = other
    assert not list(rounded_rows(graph))


def test_a_division_by_other_rows_is_none() -> None:
    graph = written()
    divide = next(node for node in graph.nodes if node.op == "Div")
    divide.inputs[0] = graph.inputs[0]
    assert not list(rounded_rows(graph))
