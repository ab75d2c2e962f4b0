"""XINT8, and other formats on scales that are powers of two. Oracle: the bits of the scales in the model."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import numpy_helper

from tests.helpers import tunable
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.calibrate.clip_histogram import clip_by_error, clip_to_power
from transforms.calibrate.histogram import Histogram
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.options import FinetuneOptions
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 10)


def _pairs(graph: gs.Graph) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Return scale, zero point and stored integers of every node that quantizes or dequantizes."""
    model = graph_proto.export_model(graph)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [
        node
        for node in model.graph.node
        if node.op_type.endswith("quantizeLinear") or "Linear" in node.op_type
    ]
    found = []
    for node in nodes:
        zero = held.get(node.input[2]) if len(node.input) > 2 else None
        found.append((held[node.input[1]], np.zeros(1) if zero is None else zero, held.get(node.input[0])))
    return found


def _quantized(model: onnx.ModelProto, name: str, **changes: object) -> gs.Graph:
    graph = model_io.load(model)
    quantize_graph(graph, preset(name).with_(**changes), CalibrationData(DATA))
    return graph


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("XINT8", {}),
        ("XINT8", {"calibrate_method": "MinMax", "weight_method": "MinMax"}),
        ("XINT8", {"calibrate_method": "Percentile"}),
        ("XINT8", {"per_channel": True}),
        ("XINT8", {"quantize_all_op_types": True, "keep_weight_nodes": True}),
        ("A16W8", {"scale": "power_of_two"}),
        ("U8S8", {"scale": "power_of_two", "calibrate_method": "MSE"}),
        ("W4A8", {"scale": "power_of_two"}),
    ],
)
def test_all_scales_are_exact_powers_of_two(name: str, changes: dict[str, object]) -> None:
    pairs = _pairs(_quantized(CONV, name, **changes))
    roles = {"none" if stored is None else str(stored.dtype) for _, _, stored in pairs}
    assert {"none", "int32"} <= roles and len(roles) >= 3, "activations, weights and biases"
    for scale, zero_point, _ in pairs:
        assert (np.frexp(scale)[0] == 0.5).all()
        if name == "XINT8":
            assert not zero_point.any()
    if name == "XINT8" and "per_channel" not in changes:
        assert all(scale.size == 1 for scale, _, _ in pairs)


@pytest.mark.parametrize(
    ("algorithm", "weight"),
    [("auto", "int8"), ("adaround", "int8"), *((one, "int4") for one in ("auto", "adaquant", "adaround"))],
)
def test_tuning_keeps_powers_of_two(algorithm: str, weight: str) -> None:
    float_graph, quantized = tunable.pair(CONV, "XINT8", DATA, weight=weight)
    done = finetune_model(float_graph, quantized, DATA, FinetuneOptions(algorithm=algorithm))
    assert done.after < done.before
    for scale, zero_point, _ in _pairs(done.graph):
        assert (np.frexp(scale)[0] == 0.5).all() and not zero_point.any()


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_range_of_an_activation_has_the_power_of_least_error(symmetric: bool) -> None:
    """No worse, by its own measure, than any other power; at most what steps of twice the size cost."""
    random = np.random.default_rng(3)
    for factor in (0.3, 1.0, 1.4, 1.9):
        x = (random.standard_t(4, 20000) * factor).astype(np.float32)
        x = x if symmetric else np.abs(x)
        histogram = Histogram()
        histogram.add(x, float(x.min()), float(x.max()))
        ends = float(x.min()), float(x.max())
        low, high = clip_to_power(histogram, ends, 256, symmetric=symmetric)
        levels = 127 if symmetric else 255
        width = max(-low, high) if symmetric else high - min(low, 0)
        exponent = int(np.ceil(np.log2(width / levels) - 1e-9))
        errors = {e: _error(x, 2.0**e, symmetric=symmetric) for e in range(exponent - 4, exponent + 5)}
        assert errors[exponent] <= min(errors.values()) * 1.02
        best = clip_by_error(histogram, ends, 256, symmetric=symmetric)
        wide = max(-best[0], best[1]) if symmetric else best[1] - min(best[0], 0)
        assert errors[exponent] <= 4.1 * _error(x, wide / levels, symmetric=symmetric)


def _error(x: np.ndarray, scale: float, *, symmetric: bool) -> float:
    lowest, highest = (-128, 127) if symmetric else (0, 255)
    return float(np.square(x - np.clip(np.rint(x / scale), lowest, highest) * scale).sum())
