"""First, depthwise and last layers of networks of convolutions. Oracle: the graphs' author."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import plans
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph.selection import label_of
from transforms.graph.sensitive_convs import sensitive_convs, weight_count
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset
from transforms.scheme.layer_rule import LayerRule

SHAPES = {"w1": (8, 3, 3, 3), "w2": (8, 1, 3, 3), "w3": (64, 8, 1, 1), "w4": (64, 64, 1, 1), "w5": (64, 4)}
HEAD = "(float[1,3,8,8] x) => (float[1,4] y) { a = Conv(x, w1) b = Relu(a) "
NETWORK = (
    HEAD + "c = Conv <group = 8> (b, w2) d = Conv(c, w3) e = Conv(d, w4) p = GlobalAveragePool(e) "
    "f = Flatten(p) z = Gemm(f, w5) y = Softmax(z) }"
)
FEEDS = [{"x": np.random.default_rng(i).standard_normal((1, 3, 8, 8), np.float32)} for i in range(2)]


def _graph(text: str = NETWORK) -> gs.Graph:
    graph = plans.graph(text, {name: shape for name, shape in SHAPES.items() if name in text})
    for node in graph.nodes:
        node.name = node.outputs[0].name
    return graph


def _names(graph: gs.Graph) -> list[str]:
    return [label_of(node) for node in sensitive_convs(graph)]


def test_the_first_comes_before_depthwise_ones_and_the_last() -> None:
    graph = _graph()
    assert _names(graph) == ["a", "c", "z"]
    counts = {label_of(node): weight_count(node) for node in graph.nodes}
    assert {name: count for name, count in counts.items() if count} == {
        "a": 216, "c": 72, "d": 512, "e": 4096, "z": 256
    }  # fmt: skip


def test_branches_have_several_first_and_last_layers() -> None:
    """Of what one layer makes, two others are made, of which one makes the last but one."""
    text = (
        "(float[1,3,8,8] x) => (float[1,64,6,6] y, float[1,8,4,4] v) { a = Conv(x, w1) g = Conv(x, w1) "
        "h = Add(a, g) d = Conv(h, w3) y = Conv(d, w4) v = Conv <group = 8> (h, w2) }"
    )
    assert _names(_graph(text)) == ["a", "g", "v", "y"]


def test_products_alone_have_none() -> None:
    assert not _names(_graph("(float[2,64] x) => (float[2,4] y) { y = Gemm(x, w5) }"))


@pytest.mark.parametrize(("share", "finer"), [(0.0, ""), (0.05, "a"), (0.06, "ac"), (0.2, "acz")])
def test_they_have_8_bits_within_the_share(share: float, finer: str) -> None:
    graph, scheme = _graph(), preset("W4A8").with_(finer_share=share, optimize=False)
    done = quantize_graph(graph, scheme.by_rule(), CalibrationData(FEEDS))
    layers = {node.name: node for node in graph.nodes if node.name in set("acdez")}
    kinds = {name: node.i(1).inputs[0].dtype.name.lstrip("u") for name, node in layers.items()}
    assert kinds == {name: "int8" if name in finer else "int4" for name in layers}
    said = [note for note in done.notes if note.startswith("Weights in int8 that gain most")]
    assert len(said) == bool(finer)


def test_a_layer_that_is_named_stays_as_it_is_named() -> None:
    graph = _graph()
    scheme = preset("W4A8").with_(finer_share=0.2, optimize=False, layers={"a": LayerRule(weight="int4")})
    quantize_graph(graph, scheme.by_rule(), CalibrationData(FEEDS))
    (first,) = (node for node in graph.nodes if node.name == "a")
    assert first.i(1).inputs[0].dtype.name == "int4"
