"""Oracles: errors of every candidate, tried out; ONNX Runtime runs float and tuned models on samples that
tuning has not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from ops.integers import ALPHAS, dequantize, quantize
from tests.helpers import build, tunable
from tests.helpers.output_error import OutputError
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.weight_grids import layer_grids, suited_grid, turned_grid
from transforms.layers.match_layers import match_layers
from transforms.layers.matched_layer import MatchedLayer
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph

CONV = tunable.conv_net()
DATA, UNSEEN = tunable.samples(CONV, 120), tunable.samples(CONV, 200)[120:]
UNSIGNED: list[tuple[str, dict[str, Any]]] = [
    ("U8S8", {"weight": "uint8"}),
    ("U8S8", {"weight": "uint8", "per_channel": True}),
    ("U16S8", {"weight": "uint8", "per_channel": True}),
    ("W4A8", {"weight": "uint4", "per_channel": False}),
    ("W4A8", {"weight": "uint4", "per_channel": True}),
    ("W4A8", {"weight": "uint4", "per_channel": True, "keep_weight_nodes": True}),
]


def _stacks() -> onnx.ModelProto:
    """Return x [n, 3, 5, 6] through a MatMul with a stack of 3 and Add, Relu, and another stack, to y."""
    random = np.random.default_rng(3)
    weights = {
        "w1": (random.standard_normal((3, 6, 4)) * [[[1]], [[0.5]], [[2]]] / 2).astype(np.float32),
        "b1": random.standard_normal((3, 1, 4)).astype(np.float32),
        "w2": (random.standard_normal((1, 3, 4, 3)) / 2).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "first"),
        helper.make_node("Add", ["m1", "b1"], ["a1"], "add"),
        helper.make_node("Relu", ["a1"], ["r1"], "relu"),
        helper.make_node("MatMul", ["r1", "w2"], ["y"], "second"),
    ]
    ends = build.value("x", ["n", 3, 5, 6]), build.value("y", ["n", 3, 5, 3])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


STACKS = _stacks()
STACKS_DATA = tunable.samples(STACKS, 40)


def _along_outputs(quantized: gs.Graph) -> None:
    """Give integer weights a scale for each output of a group, which all groups have in common."""
    for node in quantized.nodes:
        if node.op not in ("MatMul", "ConvTranspose"):
            continue
        (dequantizer,) = node.inputs[1].inputs
        values = dequantize(*(tensor.values for tensor in dequantizer.inputs))
        axis = 1 if node.op == "ConvTranspose" else values.ndim - 1
        others = tuple(i for i in range(values.ndim) if i != axis)
        scales = (np.abs(values).max(others) / 127).astype(np.float32)
        parameters = scales, np.zeros(scales.shape, np.int8)
        dequantizer.inputs[0].values = quantize(values, *parameters, "int8", axis)
        for i, array in enumerate(parameters, 1):
            dequantizer.inputs[i] = gs.Constant(f"{node.name}_{i}", array)
        dequantizer.attrs["axis"] = axis


def _layers(name: str, changes: dict[str, Any]) -> list[MatchedLayer]:
    return match_layers(*tunable.pair(CONV, name, DATA, **changes))[0]


def _importance(layer: MatchedLayer) -> np.ndarray:
    groups, _, positions, channels = layer.layer.size
    return np.random.default_rng(5).uniform(0, 2, (groups, positions * channels))


def _error(layer: MatchedLayer, rounded: np.ndarray) -> np.ndarray:
    flat = layer.float_weight.reshape(rounded.shape)
    return np.asarray((_importance(layer)[:, None] * (flat - rounded) ** 2).sum(2))


@pytest.mark.parametrize(("name", "changes"), UNSIGNED)
def test_another_scale_has_a_smaller_weighted_error(name: str, changes: dict[str, Any]) -> None:
    for layer in _layers(name, changes):
        biases = np.zeros(layer.layer.size[:2])
        same, other = layer_grids(layer, _importance(layer), biases, rescale=True)
        flat = layer.float_weight.reshape(*layer.layer.size[:2], -1).astype(np.float64)
        before, after = (_error(layer, grid.round(flat)) for _, grid, _ in (same, other))
        assert same[2] is None and other[2] is not None
        old, new = layer.weight.parameters, other[2]
        assert old is not None and old[0].shape == new[0].shape == new[1].shape
        assert after.sum() <= before.sum() * (1 if name == "W4A8" else 1 + 1e-5)  # 8 bits: often the same
        if new[0].ndim:
            assert (after <= before * (1 + 1e-5)).all()  # sums in float32


@pytest.mark.parametrize("row", ["int8", "uint8"])
def test_a_zero_point_in_the_middle_stays(row: str) -> None:
    layer = _layers("U8S8", {"weight": row, "saturation": "ignore"})[0]
    middle = np.full((), 128 if row == "uint8" else 0, row)
    assert layer.weight.grid is not None
    layer.weight.grid = replace(layer.weight.grid, zero_point=middle)
    *_, (_, _, parameters) = layer_grids(layer, _importance(layer), np.zeros((1, 8)), rescale=True)
    assert parameters is not None and np.array_equal(parameters[1], middle)


def test_scales_that_matrices_have_in_common_against_every_candidate() -> None:
    _, quantized = pair = tunable.pair(STACKS, "A8W8", STACKS_DATA)
    _along_outputs(quantized)
    layer = match_layers(*pair)[0][0]
    _, (_, grid, parameters) = layer_grids(layer, _importance(layer), np.zeros((3, 4)), rescale=True)
    assert parameters is not None and parameters[0].shape == (4,)
    flat = layer.float_weight.reshape(3, 4, 6).astype(np.float64)
    widest = np.abs(flat).max((0, 2)) / 127
    errors = []
    for alpha in ALPHAS:
        scale = (alpha * widest).astype(np.float32).astype(np.float64)[None, :, None]
        errors.append(_error(layer, np.clip(np.rint(flat / scale), -128, 127) * scale).sum(0))
    assert np.allclose(_error(layer, grid.round(flat)).sum(0), np.min(errors, axis=0), rtol=1e-5)  # float32


def _gain(float_graph: gs.Graph, before: gs.Graph, after: gs.Graph, feeds: Any) -> float:
    errors = OutputError(float_graph, feeds)
    return float(10 * np.log10(errors.each(before).relative / errors.each(after).relative))


@pytest.mark.parametrize(("name", "changes"), [one for one in UNSIGNED if one != UNSIGNED[1]])
def test_weights_with_zero_points_get_better(name: str, changes: dict[str, Any]) -> None:
    """Not of U8S8 with a scale per channel, where activations make nearly all of the error."""
    float_graph, quantized = tunable.pair(CONV, name, DATA, **changes)
    old = [layer.weight.parameters for layer in match_layers(float_graph, quantized)[0]]
    done = finetune_model(float_graph, quantized, DATA)
    assert _gain(float_graph, quantized, done.graph, UNSEEN) > 0.3
    onnx.checker.check_model(graph_proto.export_model(done.graph), full_check=True)
    layers, left = match_layers(float_graph, done.graph)
    new = [layer.weight.parameters for layer in layers]
    assert not left and [p[1].dtype for p in new if p] == [p[1].dtype for p in old if p]
    rescaled = ["other" in layer.what for layer in done.walk.layers]
    assert any(rescaled)
    for a, b, changed in zip(old, new, rescaled, strict=True):
        assert a is not None and b is not None and (changed or np.array_equal(a[0], b[0]))


@pytest.mark.parametrize("weight", ["int4", "uint4"])
def test_blocks_of_some_outputs_have_the_scales_that_they_have_among_all(weight: str) -> None:
    """Oracle: the grid of all outputs; no zeros, so that the scales of the weights in use are others."""
    net = build.dense(width=64, layers=1)
    feeds = [{"x": np.random.default_rng(i).standard_normal((4, 64), np.float32)} for i in range(4)]
    pair = tunable.pair(net, "W4", feeds, weight=weight)
    (layer,) = match_layers(*pair, ())[0]
    importance = np.random.default_rng(9).random((1, 64)) ** 4
    biases, part = np.zeros((1, layer.float_weight.shape[1])), slice(None, None, 3)
    every, present = suited_grid(layer, importance, biases)[0], layer.weight.parameters
    some = suited_grid(layer, importance, biases, part)[0].rows(part)
    for name in ("scale", "lowest", "highest"):
        np.testing.assert_array_equal(getattr(some, name), getattr(every.rows(part), name))
    assert layer.weight.block and present is not None
    assert not np.array_equal(suited_grid(layer, importance**0, biases)[0].scale, every.scale)


def test_a_zero_point_that_was_left_out_is_written() -> None:
    """Weights of uint8 around 0 without zero point lose the negative ones; with one they have them again."""
    float_graph, quantized = tunable.pair(CONV, "U8S8", DATA, weight="uint8")
    layer = match_layers(float_graph, quantized)[0][0]
    dequantizer = layer.weight.dequant_nodes[0]
    stored = layer.weight.source.values.astype(np.int64) - dequantizer.inputs[2].values
    layer.weight.source.values = np.maximum(stored, 0).astype(np.uint8)
    del dequantizer.inputs[2]
    report = finetune_weights(float_graph, quantized, DATA).layers[0]
    assert "other scale" in report.what and report.after < report.before / 100
    assert dequantizer.inputs[2].values.dtype == np.uint8 and dequantizer.inputs[2].values > 0


@pytest.mark.parametrize("name", ["A8W8", "XINT8", "U8S8", "W4A8", "BF16", "BFP16", "MX6", "MXFP4E2M1"])
def test_stacks_of_matrices_get_better(name: str) -> None:
    float_graph, quantized = tunable.pair(STACKS, name, STACKS_DATA)
    layers, left = match_layers(float_graph, quantized)
    assert not left and [layer.layer.size[0] for layer in layers] == [3, 3]
    assert layers[0].bias is not None and layers[0].target == "a1"
    done = finetune_model(float_graph, quantized, STACKS_DATA)
    gain = _gain(float_graph, quantized, done.graph, tunable.samples(STACKS, 80)[40:])
    assert gain > 0.05 if done.attempt else name in ("U8S8", "BFP16")  # rounding of inputs is most of these
    assert done.walk.layers[0].is_kept
    onnx.checker.check_model(graph_proto.export_model(done.graph), full_check=True)


def test_stacks_with_scales_in_common_get_better() -> None:
    """Activations stay float: ONNX Runtime does not multiply integers with such stacks."""
    float_graph, quantized = tunable.pair(STACKS, "A8W8", STACKS_DATA, activation="float32")
    _along_outputs(quantized)
    done = finetune_model(float_graph, quantized, STACKS_DATA)
    assert _gain(float_graph, quantized, done.graph, tunable.samples(STACKS, 80)[40:]) > 1
    assert match_layers(float_graph, done.graph)[0][0].weight.axis == 2


def test_groups_of_a_transposed_convolution_with_scales_in_common_get_better() -> None:
    """Their bias of int32 has one number for each output of each group, on the product of the scales."""
    random = np.random.default_rng(4)
    weights = {
        "w": (random.standard_normal((6, 2, 3, 3)) * [[[[1]], [[3]]]]).astype(np.float32),
        "b": random.standard_normal(4).astype(np.float32),
    }
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "up", group=2, strides=[2, 2])
    ends = build.value("x", ["n", 6, 5, 5]), build.value("y", ["n", 4, 11, 11])
    model = build.model([node], [ends[0]], [ends[1]], weights)
    data = tunable.samples(model, 40)
    float_graph, quantized = tunable.pair(model, "A16W8", data)
    _along_outputs(quantized)
    done = finetune_model(float_graph, quantized, data)
    assert _gain(float_graph, quantized, done.graph, tunable.samples(model, 80)[40:]) > 3
    (layer,), _ = match_layers(float_graph, done.graph)
    assert layer.bias is not None and layer.bias.stored is not None
    bias, weight = layer.bias.stored, layer.weight
    assert bias.source.values.dtype == np.int32 and bias.scale is not None and weight.scale is not None
    x_scale = layer.source.inputs[0].inputs[1].values
    assert weight.scale.shape == (2,) and np.array_equal(bias.scale, np.tile(x_scale * weight.scale, 2))


def test_reported_errors_of_stacks_are_those_of_the_samples() -> None:
    from tests.finetune.test_finetune_weights import _squared
    from transforms.finetune.options import FinetuneOptions
    from transforms.judge.sample_roles import is_held_out

    float_graph, quantized = tunable.pair(STACKS, "MX6", STACKS_DATA)
    tuned = copy_graph(quantized)
    report = finetune_weights(float_graph, tuned, STACKS_DATA).layers[0]
    held = [
        feed
        for i, feed in enumerate(STACKS_DATA)
        if is_held_out(i, len(STACKS_DATA), FinetuneOptions().held_out)
    ]
    for graph, reported in ((quantized, report.before), (tuned, report.after)):
        assert np.isclose(_squared(float_graph, graph, "a1", held), reported, rtol=1e-4)  # float32 sums


def test_weights_that_keep_off_the_least_code_still_do() -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA, weight_method="MinMax", saturation="ignore")
    tuned = finetune_weights(float_graph, quantized, DATA).layers
    layers = match_layers(float_graph, quantized)[0]
    assert all(layer.is_kept for layer in tuned) and all(layer.weight.is_narrow for layer in layers)
    stored = layers[0].weight.source.values.copy()
    stored.reshape(-1)[0] = -128
    layers[0].weight.source.values = stored
    for layer, least in zip(layers[:2], (-128, -127), strict=True):
        biases = np.zeros((1, layer.float_weight.shape[1]))
        (_, grid, _), *_ = layer_grids(layer, _importance(layer), biases, rescale=False)
        assert (grid.lowest == least).all()


def test_a_grid_of_negative_scales_has_the_same_numbers_and_positive_ones() -> None:
    scale = np.array([[0.5, -0.5]])
    grid = turned_grid(scale, np.full((1, 2), -8.0), np.full((1, 2), 7.0))
    assert (grid.scale > 0).all()
    far = np.array([[100.0, 100.0]])
    np.testing.assert_array_equal(grid.round(far), [[3.5, 4.0]])
    np.testing.assert_array_equal(grid.round(-far), [[-4.0, -3.5]])
