"""Zero points where they make the error of a weight less. Oracle: how the weights were made."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

RNG = np.random.default_rng(3)
WEIGHTS = {
    "ternary": RNG.integers(-1, 2, (64, 8)) * np.float32(0.5),
    "shifted": RNG.standard_normal((64, 8)).astype(np.float32) + 2,
}


def _stored(key: str, **changes: object) -> str:
    made = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[4, 64] x) => (float[4, 8] y) { y = MatMul(x, w) }'
    )
    made.graph.initializer.append(numpy_helper.from_array(WEIGHTS[key].astype(np.float32), "w"))
    graph = graph_proto.import_model(made)
    quantize_graph(graph, preset("W4").with_(optimize=False, **changes))
    (node,) = (node for node in graph.nodes if node.op == "DequantizeLinear")
    return str(node.inputs[0].dtype)


@pytest.mark.parametrize(("key", "expected"), [("ternary", "int4"), ("shifted", "uint4")])
def test_the_error_of_a_weight_decides(key: str, expected: str) -> None:
    assert _stored(key) == expected


@pytest.mark.parametrize("key", WEIGHTS)
def test_a_scheme_decides_for_all(key: str) -> None:
    assert _stored(key, weight_symmetric=True) == "int4"
    assert _stored(key, weight_symmetric=False) == "uint4"


def test_a_format_that_is_named_stays() -> None:
    assert _stored("shifted", layers={"MatMul": {"weight": "int4"}}) == "int4"
    assert _stored("shifted", tensors={"w": "int4"}) == "int4"
