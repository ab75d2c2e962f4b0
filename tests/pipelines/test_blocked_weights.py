"""Weights with a scale for each block. Oracle: NumPy decodes the written model; ONNX Runtime runs it, and the
same model with the decoded numbers, without fusions: it fuses blocks with products, and rounds inputs then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import blocked_nets, tunable
from tests.helpers.output_error import OutputError
from tests.helpers.spread import spread
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.fit_weights import fit_weights
from transforms.layers.match_layers import match_layers
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

NETS = {name: getattr(blocked_nets, name)() for name in ("convolutions", "products", "stacks")}
CHANGES: list[dict[str, Any]] = [
    {},
    {"weight": "uint4"},
    {"weight": "int8"},
    {"weight": "uint8", "block_size": 64},
    {"keep_weight_nodes": True},
]


def _run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, feed)[0])


def _assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Sums of up to 720 products may be formed in any order in each of at most five layers."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=5 * 720 * 2.0**-24 * np.abs(expected).max())


def _blocks(model: onnx.ModelProto) -> dict[str, int]:
    return {
        node.output[0]: next((a.i for a in node.attribute if a.name == "block_size"), 0)
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
    }


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("name", NETS)
def test_written_weights(name: str, changes: dict[str, Any]) -> None:
    source = NETS[name]
    graph = graph_proto.import_model(source)
    done = quantize_graph(graph, preset("W4").with_(optimize=False, **changes))
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    (feed,) = tunable.samples(source, 1)
    exact, found = _run(source, feed), _run(model, feed)
    if "keep_weight_nodes" in changes:
        plain = graph_proto.import_model(source)
        quantize_graph(plain, preset("W4").with_(optimize=False))
        _assert_close(found, _run(graph_proto.export_model(plain), feed))
        return
    _assert_close(found, _run(blocked_nets.with_floats(model), feed))
    bits = 4 if "4" in changes.get("weight", "int4") else 8
    assert np.linalg.norm(found - exact) < {4: 0.4, 8: 0.02}[bits] * np.linalg.norm(exact)
    whole = [node for node, block in _blocks(model).items() if not block]
    assert any(_blocks(model).values()) == (name != "stacks" or "block_size" not in changes)
    assert bool(whole) == any("per channel" in note for note in done.notes)


@pytest.mark.parametrize("weight", ["int2", "uint2"])
@pytest.mark.parametrize("name", NETS)
def test_two_bits_in_a_default_session(name: str, weight: str) -> None:
    """ONNX Runtime 1.32 makes something else of matrices whose number of columns 4 does not divide: 4 bits.

    A default session rounds inputs to 8 bits for each block, 1/254 of its largest number, in five layers.
    """
    graph = graph_proto.import_model(NETS[name])
    done = quantize_graph(graph, preset("W2").with_(weight=weight, per_channel=True))
    model = graph_proto.export_model(graph)
    (feed,) = tunable.samples(NETS[name], 1)
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    expected = _run(model, feed)
    assert np.abs(found - expected).max() < 5 / 254 * np.abs(expected).max()
    assert any("4 bits in place of 2" in note for note in done.notes) == (name == "products")


def test_integer_activations_leave_the_bias_float() -> None:
    source = NETS["convolutions"]
    graph = graph_proto.import_model(source)
    quantize_graph(graph, preset("W4A8").with_(block_size=32), CalibrationData(tunable.samples(source, 8)))
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    assert {one.data_type for one in model.graph.initializer if one.name == "b1"} == {onnx.TensorProto.FLOAT}
    (feed,) = tunable.samples(source, 1)
    exact, found = _run(source, feed), _run(model, feed)
    assert np.linalg.norm(found - exact) < 0.4 * np.linalg.norm(exact)


@pytest.mark.parametrize(("name", "weight"), spread(NETS, ["int4", "uint4"], of=3))
def test_tuning_moves_weights_on_their_grid(name: str, weight: str) -> None:
    """Also rounded by outputs alone."""
    source = NETS[name]
    every = tunable.samples(source, 240)  # on 20 unseen ones chance may show a loss
    float_graph, quantized = tunable.pair(source, "W4", every[:40], weight=weight)
    layers, left = match_layers(float_graph, quantized)
    assert not left and any(layer.weight.block == 32 for layer in layers)
    errors = OutputError(float_graph, every[40:])
    before = errors.each(quantized).relative
    tuned = finetune_model(float_graph, quantized, every[:40])
    fitted = copy_graph(quantized)
    fit_weights(float_graph, fitted, every[:40])
    assert tuned.attempt and errors.each(tuned.graph).relative < before
    for graph in (fitted, tuned.graph):
        assert errors.each(graph).relative <= before
        model = graph_proto.export_model(graph)
        onnx.checker.check_model(model, full_check=True)
        assert list(_blocks(model).values()) == list(_blocks(graph_proto.export_model(quantized)).values())
        feed = every[-1]
        _assert_close(_run(model, feed), _run(blocked_nets.with_floats(model), feed))


@pytest.mark.parametrize("value", [8, 33, -32, True, "32"])
def test_other_sizes_are_refused(value: object) -> None:
    with pytest.raises(
        ValueError, match=r"^block_size is .*(legal are 0, 16, 32, 64, 128, 256|whole number)$"
    ):
        preset("W8").with_(block_size=value)


def test_blocks_need_the_standard_domain() -> None:
    scheme = preset("W8").with_(block_size=32, qdq_domain="com.microsoft")
    with pytest.raises(ValueError, match=r"^block_size requires ONNX's own domain, qdq_domain is 'com"):
        quantize_graph(graph_proto.import_model(NETS["products"]), scheme)
