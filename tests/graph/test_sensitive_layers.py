"""Sensitive layers are told by what reads and what made them. Oracle: the graphs' author."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import numpy_helper

from transforms.graph.sensitive_layers import sensitive_layers
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

WIDTH, INNER, LAYERS = 32, 96, 6
_SCORES = "t{n} = Transpose <perm=[0, 2, 1]> (k{n}) c{n} = MatMul(q{n}, t{n}) p{n} = Softmax(c{n})"
ATTENTION = f"{_SCORES} a{{n}} = MatMul(p{{n}}, v{{n}})"
BEHIND = (
    f"{_SCORES} m{{n}} = Where(mask, p{{n}}, zero) j{{n}} = Add(v{{n}}, bias) a{{n}} = MatMul(m{{n}}, j{{n}})"
)
_PRODUCTS = "q{n} = MatMul(x{n}, wq) k{n} = MatMul(x{n}, wk) v{n} = MatMul(x{n}, wv)"
_REST = (
    "o{n} = MatMul(a{n}, wo) r{n} = Add(x{n}, o{n}) g{n} = MatMul(r{n}, wg) u{n} = MatMul(r{n}, wu)"
    " s{n} = Sigmoid(g{n}) f{n} = Mul(s{n}, u{n}) d{n} = MatMul(f{n}, wd) x{m} = Add(r{n}, d{n})"
)


def model(attention: str) -> onnx.ModelProto:
    """Return layers that each have weights of their own."""
    text, shapes, random = "", {}, np.random.default_rng(0)
    sizes = {"wg": (WIDTH, INNER), "wu": (WIDTH, INNER), "wd": (INNER, WIDTH)}
    for n in range(LAYERS):
        part = f"{_PRODUCTS} {attention} {_REST} ".format(n=n, m=n + 1)
        for name in ("wq", "wk", "wv", "wo", "wg", "wu", "wd"):
            part = part.replace(f"{name})", f"{name}{n})")
            shapes[f"{name}{n}"] = sizes.get(name, (WIDTH, WIDTH))
        text += part
    shapes |= {"wh": (WIDTH, 2 * WIDTH), "bias": (WIDTH,)}
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1, 8, {WIDTH}] x0) => (float[1, 8, s] y)'
        f"{{ {text} y = MatMul(x{LAYERS}, wh) }}"
    )
    arrays = {name: random.standard_normal(shape, np.float32) / 8 for name, shape in shapes.items()}
    arrays |= {"mask": np.ones((1, 8, 8), bool), "zero": np.zeros((), np.float32)}
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(numpy_helper.from_array(a, k) for k, a in arrays.items() if k in used)
    for node in made.graph.node:
        node.name = node.output[0]
    return onnx.shape_inference.infer_shapes(made)


def found(made: onnx.ModelProto) -> list[str]:
    return [node.name for node in sensitive_layers(graph_proto.import_model(made))]


def test_values_outputs_and_half_of_the_seconds() -> None:
    names = found(model(ATTENTION))
    assert names[:2] == ["v0", "v5"], "the outer layers come first"
    assert len(names) == len(SENSITIVE) and set(names) == SENSITIVE


def test_values_behind_a_mask_and_a_bias() -> None:
    assert {f"v{n}" for n in range(LAYERS)} <= set(found(model(BEHIND)))


def test_no_layer_without_attention() -> None:
    assert found(model("a{n} = Add(q{n}, v{n})")) == []


SENSITIVE = {*(f"v{n}" for n in range(LAYERS)), "y", "d0", "d3", "d5"}


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, set()),
        (0.05, {"v0", "v5", "v1", "v3"}),  # 5 % of 81,920 numbers: 4 values of 1,024
        (1.0, SENSITIVE),
    ],
)
def test_the_share_limits_them(share: float, expected: set[str]) -> None:
    graph = graph_proto.import_model(model(ATTENTION))
    done = quantize_graph(graph, preset("W4").with_(finer_share=share, optimize=False))
    assert {name for name, dtype in _stored(graph).items() if dtype == np.int8} == expected
    assert sum("for their bytes" in note for note in done.notes) == bool(expected)


def test_a_rule_of_the_scheme_comes_first() -> None:
    graph = graph_proto.import_model(model(ATTENTION))
    quantize_graph(
        graph, preset("W4").with_(finer_share=1, optimize=False, layers={"v0": {"weight": "int4"}})
    )
    assert _stored(graph)["v0"].name == "int4"


def _stored(graph: gs.Graph) -> dict[str, np.dtype]:
    """Return the types of stored weights by product."""
    products = (node for node in graph.nodes if node.op == "MatMul" and node.inputs[1].inputs)
    return {node.name: node.inputs[1].inputs[0].inputs[0].dtype for node in products}
