"""Oracle: graphs drawn so that the answer is plain."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.helpers import build, tunable
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.layer_targets import reads_activation_product
from transforms.layers.match_layers import match_layers


def attention(seed: int = 0) -> onnx.ModelProto:
    """Return x [n, 6, 8] through MatMul of x and itself, its Softmax, values, and a last MatMul to y."""
    random = np.random.default_rng(seed)
    weights = {"w": random.standard_normal((8, 8)).astype(np.float32), "b": np.zeros(8, np.float32)}
    weights["v"] = random.standard_normal((8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "transpose", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["s"], "scores"),
        helper.make_node("Softmax", ["s"], ["p"], "softmax"),
        helper.make_node("MatMul", ["x", "v"], ["xv"], "values"),
        helper.make_node("MatMul", ["p", "xv"], ["m"], "mix"),
        helper.make_node("MatMul", ["m", "w"], ["o"], "out"),
        helper.make_node("Add", ["o", "b"], ["y"], "bias"),
    ]
    ends = [build.value(name, ["n", 6, 8]) for name in ("x", "y")]
    return build.model(nodes, ends[:1], ends[1:], weights)


DATA = [{"x": np.random.default_rng(i).standard_normal((1, 6, 8)).astype(np.float32)} for i in range(30)]


def sources(graph: gs.Graph, twin: gs.Graph) -> dict[str, bool]:
    return {layer.name: reads_activation_product(layer.source) for layer in match_layers(twin, graph)[0]}


@pytest.mark.parametrize("name", ["A8W8", "XINT8", "MX6", "MXFP4E2M1", "BFP16"])
def test_the_layer_behind_attention_reads_a_product(name: str) -> None:
    twin, quantized = tunable.pair(attention(), name, DATA)
    assert sources(quantized, twin) == {"values": False, "out": True}


def test_a_product_that_is_not_rounded_does_not_count() -> None:
    twin, quantized = tunable.pair(attention(), "MX6", DATA, exclude_nodes=("scores", "mix"))
    assert sources(quantized, twin) == {"values": False, "out": False}


def chain() -> onnx.ModelProto:
    """Return x [n, 16] through three layers of MatMul, one right behind the other, to y."""
    model = build.dense(layers=3)
    nodes = [node for node in model.graph.node if node.op_type == "MatMul"]
    for before, after in pairwise(nodes):
        after.input[0] = before.output[0]
    nodes[-1].output[0] = "y"
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return build.model(nodes, list(model.graph.input), list(model.graph.output), weights)


@pytest.mark.parametrize("name", ["A8W8", "MX6"])
@pytest.mark.parametrize("model", [tunable.conv_net(), chain()])
def test_products_with_constants_do_not_count(model: onnx.ModelProto, name: str) -> None:
    twin, quantized = tunable.pair(model, name, tunable.samples(model, 5))
    found = sources(quantized, twin)
    assert len(found) >= 3 and not any(found.values())


def test_such_a_layer_stands_for_its_own_rounding_alone() -> None:
    """Its weights are exact in the format, so that there is nothing to make up for; its inputs are not."""
    model = attention()
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    twin, quantized = tunable.pair(model, "MXFP4E2M1", DATA)
    done = finetune_weights(twin, quantized, DATA)
    layers = {layer.name: layer for layer in match_layers(twin, quantized)[0]}
    reports = {layer.name: layer for layer in done.layers}
    assert reports["out"].before > 0 and np.array_equal(layers["out"].weight.values(), np.eye(8))
    bias = layers["out"].bias
    assert bias is not None and bias.stored is not None and not bias.stored.values().any()
