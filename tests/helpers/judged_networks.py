"""Small networks whose outputs decide, and what quantizing makes of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.helpers import conversion
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.record import Record
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import Scheme

Feeds = list[dict[str, NDArray[np.float32]]]


@cache
def network(seed: int, spread: float, outliers: float, softmax: bool = False) -> onnx.ModelProto:
    """Return a small CNN whose channels differ by ``spread`` and whose weights have ``outliers``."""
    random = np.random.default_rng(seed)

    def _weight(*shape: int) -> NDArray[np.float32]:
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        values *= np.exp(spread * random.standard_normal((shape[0], *[1] * (len(shape) - 1))))
        values *= np.where(random.random(shape) < 0.01, outliers, 1)
        return (values + 0.1 / np.prod(shape[1:])).astype(np.float32)

    weights = {
        "w1": _weight(16, 3, 3, 3),
        "w2": _weight(16, 1, 3, 3),
        "w3": _weight(24, 16, 1, 1),
        "w4": _weight(10, 24),
        **{
            f"b{i}": (random.standard_normal(n) * 0.1).astype(np.float32)
            for i, n in enumerate((16, 16, 24, 10), 1)
        },
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1] * 4, group=16),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w3", "b3"], ["c3"], "conv3"),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["y" if not softmax else "logits"], "gemm", transB=1),
        *([helper.make_node("Softmax", ["logits"], ["y"])] if softmax else []),
    ]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ["N", 3, 12, 12]), ("y", ["N", 10]))]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(count: int, seed: int) -> Feeds:
    random = np.random.default_rng(seed)
    level = random.uniform(0.5, 1.5, (count, 1, 3, 1, 1))
    images = level + 0.5 * random.standard_normal((count, 1, 3, 12, 12))
    return [{"x": image.astype(np.float32)} for image in images]


def quantized(model: onnx.ModelProto, scheme: Scheme, feeds: Feeds, **data: object) -> tuple[bytes, Record]:
    graph = model_io.load(model)
    done = quantize_graph(graph, scheme, CalibrationData(feeds, **data))  # type: ignore[arg-type]
    return graph_proto.export_model(graph).SerializeToString(deterministic=True), done


def ratio(model: onnx.ModelProto, made: bytes, feeds: Feeds) -> float:
    """Return the signal-to-noise ratio over samples in dB."""
    batch = {"x": np.concatenate([feed["x"] for feed in feeds])}
    expected = conversion.run(model, batch)["y"].astype(np.float64)
    found = conversion.run(onnx.load_from_string(made), batch)["y"]
    return float(10 * np.log10(np.square(expected).sum() / np.square(expected - found).sum()))


NETWORKS = [
    *((0, 0.0, 1.0), (1, 1.0, 1.0), (2, 0.3, 8.0), (3, 1.5, 4.0)),
    *((4, 0.6, 30.0), (5, 0.5, 60.0), (6, 2.0, 1.0), (7, 0.2, 100.0)),
]
