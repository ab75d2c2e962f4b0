"""Oracles: NumPy reads the weights of the result; ONNX Runtime runs models on samples that were not used."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import ops
from ops.integers import dequantize, quantize
from tests.helpers import tunable
from tests.helpers.output_error import OutputError
from tests.helpers.spread import spread
from transforms.finetune.collect_gram import open_sums
from transforms.finetune.fit_scales import fit_scales, options_for
from transforms.finetune.layer_stats import RowStats
from transforms.finetune.scale_candidates import best_scales
from transforms.finetune.write_layer import current
from transforms.judge.constants import MAY_LOSE
from transforms.layers.match_layers import match_layers
from transforms.model.copy_graph import copy_graph
from transforms.scheme import preset

CONV, PRODUCTS = tunable.conv_net(), tunable.matmul_net()
SETTINGS: list[tuple[onnx.ModelProto, str, dict[str, Any]]] = [
    (CONV, "W4A8", {}),
    (CONV, "W4A8", {"correct_biases": True}),
    (CONV, "W4A8", {"per_channel": False}),
    (CONV, "W4A8", {"weight": "uint4"}),
    (PRODUCTS, "W4A8", {}),
    (CONV, "MX4", {}),
    (CONV, "MX6", {}),
    (PRODUCTS, "MXFP4E2M1", {}),
    (CONV, "MXFP6E2M3", {}),
]


def _relative(float_graph: gs.Graph, graph: gs.Graph, feeds: list[dict[str, np.ndarray]]) -> float:
    return OutputError(float_graph, feeds).each(graph).relative


@pytest.mark.parametrize(("model", "name", "changes", "keeps_rows"), spread(SETTINGS, [False, True], of=3))
def test_outputs_improve_on_unseen_samples(
    model: onnx.ModelProto,
    name: str,
    changes: dict[str, Any],
    keeps_rows: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are kept where they are fewer than inputs, here of any layer."""
    if keeps_rows:
        monkeypatch.setattr("transforms.finetune.row_sums.LEAST_INPUTS", 1)
        monkeypatch.setattr(RowStats, "settled", lambda self: self)
    every = tunable.samples(model, 180)
    feeds, unseen = every[:40], every[40:]
    float_graph, quantized = tunable.pair(model, name, feeds, **changes)
    found = fit_scales(
        float_graph, quantized, feeds, options_for(len(feeds)), formats=preset(name).named_formats
    )
    before, after = (_relative(float_graph, graph, unseen) for graph in (quantized, found.graph))
    # what a Softmax is made of may show the gain, and then outputs may lose MAY_LOSE
    assert after < before * 10 ** (MAY_LOSE / 10) if found.fitted else found.graph is quantized
    if model is CONV and name != "MXFP6E2M3":  # that gains less than 1.5 dB
        assert found.fitted
        assert found.after < found.before


@pytest.mark.parametrize("weight", ["int4", "uint4"])
def test_weights_are_the_nearest_on_their_scales(weight: str) -> None:
    feeds = tunable.samples(CONV, 60)
    float_graph, quantized = tunable.pair(CONV, "W4A8", feeds, weight=weight)
    found = fit_scales(float_graph, quantized, feeds)
    floats = {node.name: node.inputs[1].values for node in float_graph.nodes if node.op in ("Conv", "Gemm")}
    changed = 0
    for node in found.graph.nodes:
        if node.name not in floats:
            continue
        (dequantizer,) = node.inputs[1].inputs
        stored, scale, zero_point = (tensor.values for tensor in dequantizer.inputs)
        axis = dequantizer.attrs.get("axis") if scale.ndim else None
        nearest = quantize(floats[node.name], scale, zero_point, weight, axis)
        np.testing.assert_array_equal(
            dequantize(stored.astype(nearest.dtype), scale, zero_point, axis),
            dequantize(nearest, scale, zero_point, axis),
        )
        changed += 1
    assert changed == 3


@pytest.mark.parametrize("name", ["MX4", "MXFP4E2M1"])
def test_weights_in_blocks_stay_on_their_format(name: str) -> None:
    feeds = tunable.samples(CONV, 60)
    float_graph, quantized = tunable.pair(CONV, name, feeds)
    found = fit_scales(float_graph, quantized, feeds, formats=preset(name).named_formats)
    assert found.fitted
    for node in found.graph.nodes:
        if node.op in ("Conv", "Gemm"):
            values = node.inputs[1].values
            np.testing.assert_array_equal(ops.quantize_dequantize(values, preset(name).weight, 1), values)


@pytest.mark.parametrize(("name", "count"), [("A8W8", 10), ("MX9", 10), ("W4A8", 1)])
def test_nothing_is_done_for_many_bits_and_one_sample(name: str, count: int) -> None:
    feeds = tunable.samples(CONV, count)
    float_graph, quantized = tunable.pair(CONV, name, feeds)
    found = fit_scales(float_graph, quantized, feeds, formats=preset(name).named_formats)
    assert found.graph is quantized
    assert found.layers == found.samples == 0


def test_neither_graph_is_changed() -> None:
    feeds = tunable.samples(CONV, 20)
    graphs = tunable.pair(CONV, "W4A8", feeds)
    kept = [gs.export_onnx(copy_graph(graph)).SerializeToString(deterministic=True) for graph in graphs]
    seen: list[tuple[int, int]] = []
    fit_scales(*graphs, feeds, progress=lambda done, count: seen.append((done, count)))
    again = [gs.export_onnx(copy_graph(graph)).SerializeToString(deterministic=True) for graph in graphs]
    assert again == kept
    assert seen[:4] == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("damping", [0.0, 0.1, 100.0])
def test_damped_scales_are_better_than_any_other_scale_that_is_tried(damping: float) -> None:
    """Oracle: NumPy's sums over rows of the error of a layer, and of the distance from its float weights."""
    feeds = tunable.samples(PRODUCTS, 20)
    float_graph, quantized = tunable.pair(PRODUCTS, "W4A8", feeds)
    layers, _ = match_layers(float_graph, quantized)
    with open_sums(float_graph, quantized, feeds, layers, options_for(len(feeds))) as sums:
        fit, _ = sums.read(0)
    layer, (part,) = layers[0], fit.parts
    target = layer.float_weight.reshape(*layer.float_weight.shape[:2], -1).astype(np.float64)
    weight = damping * np.diagonal(part.centred().xx[0]).mean()

    def _cost(weights: np.ndarray) -> np.ndarray:
        return part.error(weights, part.bias(weights)) + weight * np.square(weights - target).sum(-1)

    found = _cost(best_scales(layer, current(layer), fit, damping).weights)
    largest = np.maximum(target.max(-1) / 7, -target.min(-1) / 8)[..., None]
    for step in np.arange(4, 11) / 10:
        scale = np.float32(largest * step)
        others = _cost(np.clip(np.rint(target / scale), -8, 7) * scale)
        assert (found <= others * (1 + 1e-6)).all()
