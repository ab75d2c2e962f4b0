"""Oracles: NumPy reads the weights of the result; ONNX Runtime runs models on samples that were not used."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import ops
import transforms.finetune.fit_weights as fit_module
from ops.integers import quantize
from tests.helpers import tunable
from tests.helpers.output_error import OutputError
from tests.helpers.spread import spread
from transforms.finetune.fit_weights import fit_weights
from transforms.finetune.layer_stats import RowStats
from transforms.model.copy_graph import copy_graph
from transforms.scheme import preset
from transforms.scheme.fitted_weights import has_few_bits
from transforms.scheme.layer_rule import LayerRule

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
    before = _relative(float_graph, quantized, unseen)
    layers, fitted = fit_weights(float_graph, quantized, feeds, formats=preset(name).named_formats)
    assert 0 < fitted <= layers
    assert _relative(float_graph, quantized, unseen) < before


@pytest.mark.parametrize("weight", ["int4", "uint4"])
def test_weights_are_less_than_the_nearest_off_in_outputs_and_on_their_grid(weight: str) -> None:
    """Oracle: integers of the type, and NumPy's nearest on the same scales: some are others."""
    feeds = tunable.samples(CONV, 60)
    float_graph, quantized = tunable.pair(CONV, "W4A8", feeds, weight=weight, finer_share=0.0)
    fit_weights(float_graph, quantized, feeds)
    floats = {node.name: node.inputs[1].values for node in float_graph.nodes if node.op in ("Conv", "Gemm")}
    others = 0
    for node in quantized.nodes:
        if node.name not in floats:
            continue
        (dequantizer,) = node.inputs[1].inputs
        stored, scale, zero_point = (tensor.values for tensor in dequantizer.inputs)
        axis = dequantizer.attrs.get("axis") if scale.ndim else None
        nearest = quantize(floats[node.name], scale, zero_point, weight, axis).astype(np.int8)
        lowest, highest = (-8, 7) if weight == "int4" else (0, 15)
        assert lowest <= stored.astype(np.int8).min() and stored.astype(np.int8).max() <= highest
        others += int((stored.astype(np.int8) != nearest).sum())
    assert others


def test_layers_with_more_bits_make_up_for_those_before_them() -> None:
    """They are rounded anew where others have few bits, and help the outputs on unseen samples."""
    every = tunable.samples(CONV, 180)
    feeds, unseen = every[:40], every[40:]
    errors, layers = [], {"depthwise": LayerRule(weight="int8")}
    for rounds in (has_few_bits, lambda fmt: fmt is not None):
        float_graph, quantized = tunable.pair(CONV, "W4A8", feeds, layers=layers)
        with pytest.MonkeyPatch.context() as patch:
            found = fit_module.match_layers(float_graph, quantized, ())
            some = [layer for layer in found[0] if rounds(layer.weight.format)]
            patch.setattr(fit_module, "match_layers", lambda *given, some=some: (some, []))
            assert fit_weights(float_graph, quantized, feeds)[0] == len(some)
        errors.append(_relative(float_graph, quantized, unseen))
    assert errors[1] < errors[0]
    float_graph, quantized = tunable.pair(CONV, "W4A8", feeds, layers=layers)
    assert fit_weights(float_graph, quantized, feeds)[0] == 4
    assert _relative(float_graph, quantized, unseen) == errors[1]


@pytest.mark.parametrize("name", ["MX4", "MXFP4E2M1"])
def test_weights_in_blocks_stay_on_their_format(name: str) -> None:
    feeds = tunable.samples(CONV, 60)
    float_graph, quantized = tunable.pair(CONV, name, feeds)
    assert fit_weights(float_graph, quantized, feeds, formats=preset(name).named_formats)[1]
    for node in quantized.nodes:
        if node.op in ("Conv", "Gemm"):
            values = node.inputs[1].values
            np.testing.assert_array_equal(ops.quantize_dequantize(values, preset(name).weight, 1), values)


@pytest.mark.parametrize(("name", "count"), [("A8W8", 10), ("MX9", 10), ("W4A8", 1)])
def test_nothing_is_done_for_many_bits_and_one_sample(name: str, count: int) -> None:
    feeds = tunable.samples(CONV, count)
    float_graph, quantized = tunable.pair(CONV, name, feeds)
    before = _bytes(quantized)
    assert fit_weights(float_graph, quantized, feeds, formats=preset(name).named_formats) == (0, 0)
    assert _bytes(quantized) == before


def test_the_float_graph_is_not_changed() -> None:
    feeds = tunable.samples(CONV, 20)
    float_graph, quantized = tunable.pair(CONV, "W4A8", feeds)
    kept = _bytes(float_graph)
    seen: list[tuple[int, int]] = []
    fit_weights(float_graph, quantized, feeds, progress=lambda done, count: seen.append((done, count)))
    assert _bytes(float_graph) == kept
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def _bytes(graph: gs.Graph) -> bytes:
    return gs.export_onnx(copy_graph(graph)).SerializeToString(deterministic=True)
