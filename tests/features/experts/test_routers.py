"""Routers are told from heads that choose an answer by where the choice goes. Oracle: the graphs' authors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.features.experts.routers import routers
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

WIDTH, EXPERTS = 32, 4

_FRONT = "h = MatMul(x, w0)  l = MatMul(h, gate)"
_SPREAD = "m = ScatterElements <axis=1> (zeros, i, v)"
_COMBINE = "a = MatMul(h, w1)  b = MatMul(h, w2)  f, g, r1, r2 = Split <axis=1> (m)"
_SUM = "c = Mul(a, f)  d = Mul(b, g)  y = Add(c, d)"

ROUTERS = {
    "factors of experts": f"{_FRONT} u, i = TopK(l, two) v = Softmax(u) {_SPREAD} {_COMBINE} {_SUM}",
    "softmax first": f"{_FRONT} s = Softmax(l) v, i = TopK(s, two) {_SPREAD} {_COMBINE} {_SUM}",
    "bias, sigmoid, shape": f"{_FRONT} n = Add(l, bias) s = Sigmoid(n) t = Reshape(s, shape)"
    f" v, i = TopK(t, two) {_SPREAD} {_COMBINE} {_SUM}",
    "first of all": f"{_FRONT} i = ArgMax <axis=1, keepdims=0> (l)"
    f" m = OneHot(i, depth, ends) {_COMBINE} {_SUM}",
    "rows of weights": f"{_FRONT} v, i = TopK(l, two) w = Gather(stack, i) e = Unsqueeze(h, axes)"
    " y = MatMul(e, w)",
    "rows of states": f"{_FRONT} t = Transpose <perm=[1, 0]> (l) v, i = TopK(t, two) j = Reshape(i, flat)"
    " r = Gather(h, j) y = MatMul(r, w1)",
}

HEADS = {
    "classes": f"{_FRONT} s = Softmax(l) y, i = TopK(s, two)",
    "class": f"{_FRONT} i = ArgMax <axis=1> (l) y = Cast <to=1> (i)",
    "boxes": f"{_FRONT} b = MatMul(h, w1) s = Sigmoid(l) t = Reshape(s, flat) v, i = TopK(t, two)"
    " c = Gather(b, i) y = Mul(c, half)",
    "classes that are masked": f"{_FRONT} v, i = TopK(l, two) {_SPREAD} y = Mul(m, l)",
    "vocabulary": "h = MatMul(x, w0) l = MatMul(h, wide) v, i = TopK(l, two) r = Gather(wide0, i)"
    " y = MatMul(r, w1)",
    "scores of attention": "h = MatMul(x, w0) t = Transpose <perm=[1, 0]> (x) l = MatMul(h, t)"
    " v, i = TopK(l, two) y = MatMul(v, w3)",
}


def model(text: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    shapes = {
        **dict.fromkeys(("w0", "w1", "w2"), (WIDTH, WIDTH)), "w3": (2, WIDTH), "gate": (WIDTH, EXPERTS),
        "stack": (EXPERTS, WIDTH, WIDTH), "wide": (WIDTH, 2000), "wide0": (2000, WIDTH), "bias": (EXPERTS,),
    }  # fmt: skip
    weights = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    weights |= {"two": np.array([2]), "zeros": np.zeros((8, EXPERTS), np.float32), "axes": np.array([1, 2])}
    weights |= {"shape": np.array([8, EXPERTS]), "flat": np.array([-1]), "depth": np.array(EXPERTS)}
    weights |= {"ends": np.array([0, 1], np.float32), "half": np.array(0.5, np.float32)}
    graph = f"g (float[8, {WIDTH}] x) => (float[] y) {{ {text} }}"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    made.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in weights.items():
        if any(name in node.input for node in made.graph.node):
            made.graph.initializer.append(numpy_helper.from_array(array, name))
    for node in made.graph.node:
        node.name = node.output[0]
    return onnx.shape_inference.infer_shapes(made)


def found(made: onnx.ModelProto) -> list[str]:
    return [node.name for node in routers(graph_proto.import_model(made))]


@pytest.mark.parametrize("text", ROUTERS.values(), ids=list(ROUTERS))
def test_a_choice_that_the_network_computes_with(text: str) -> None:
    assert found(model(text)) == ["l"]


@pytest.mark.parametrize("text", HEADS.values(), ids=list(HEADS))
def test_a_choice_that_is_an_answer(text: str) -> None:
    assert found(model(text)) == []


@pytest.mark.parametrize("between", ["", "Softmax"])
def test_operators_of_experts(between: str) -> None:
    made = model("h = MatMul(x, w0) l = MatMul(h, gate) y = Identity(l)")
    del made.graph.node[2:]
    if between:
        made.graph.node.append(helper.make_node(between, ["l"], ["p"]))
    inputs = ["h", "p" if between else "l", "stack", "", "stack"]
    made.graph.node.append(helper.make_node("MoE", inputs, ["y"], "moe", domain="com.microsoft", k=2))
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    stack = np.zeros((EXPERTS, WIDTH, WIDTH), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(stack, "stack"))
    assert found(made) == ["l"]


@pytest.mark.parametrize(
    ("config", "changes", "expected"),
    [
        ("W4", {}, "float32"),
        ("MX4", {}, "float32"),
        ("W4A8", {}, "int8"),
        ("W8", {}, None),
        ("W4", {"layers": {"l": {"weight": "int4"}}}, None),
        ("W4", {"layers": {"MatMul": {"weight": "int4"}}}, None),
    ],
)
def test_weights_of_routers(config: str, changes: dict[str, object], expected: str | None) -> None:
    """None: nothing is said, and the router has what the scheme or its rule says."""
    graph = graph_proto.import_model(model(ROUTERS["softmax first"]))
    feeds = [{"x": np.random.default_rng(i).standard_normal((8, WIDTH), np.float32)} for i in range(2)]
    scheme = preset(config).with_(optimize=False, **changes).by_rule()
    done = quantize_graph(graph, scheme, CalibrationData(feeds) if config == "W4A8" else None)
    notes = [note for note in done.notes if "choose" in note]
    (router,) = (node for node in graph.nodes if node.name == "l")
    weight = router.inputs[1]
    if expected is None:
        assert not notes and weight.inputs[0].op == "DequantizeLinear"
        return
    words = "in float" if expected == "float32" else f"in {expected}"
    assert notes == [f"Weights {words} that choose what is computed: 'l'; layers entries change that"]
    if expected == "float32":
        assert weight.name == "gate" and not weight.inputs
    else:
        assert weight.inputs[0].inputs[0].dtype == np.int8
