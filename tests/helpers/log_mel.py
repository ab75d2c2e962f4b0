"""Features of speech as nets are shipped with them: frames by a Conv, powers, bands by a MatMul, logarithms.

Samples are cut off at 1 first, which is why rules do not see that all of it is a spectrum; a layer reads the
logarithms.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ops.array_types import Feed

_SIZE, _BANDS, _LENGTH = 32, 12, 512


def model() -> onnx.ModelProto:
    """Return the features, and a layer of random weights on them."""
    bins = _SIZE // 2 + 1
    angles = 2 * np.pi * np.arange(bins)[:, None] * np.arange(_SIZE) / _SIZE
    window = np.hanning(_SIZE + 1)[:-1]
    places = np.linspace(0, bins - 1, _BANDS + 2)
    rise = (np.arange(bins) - places[:-2, None]) / np.diff(places)[:-1, None]
    fall = (places[2:, None] - np.arange(bins)) / np.diff(places)[1:, None]
    stored = {
        "real": (window * np.cos(angles))[:, None],
        "imaginary": (window * np.sin(angles))[:, None],
        "bands": np.clip(np.minimum(rise, fall), 0, None).T,
        "least": np.array(1e-6),
        "weights": np.random.default_rng(0).normal(size=(_BANDS, 8)),
        "low": np.array(-1.0),
        "high": np.array(1.0),
    }
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["cut"]),
        helper.make_node("Conv", ["cut", "real"], ["re"], "re", strides=[_SIZE // 2]),
        helper.make_node("Conv", ["cut", "imaginary"], ["im"], "im", strides=[_SIZE // 2]),
        helper.make_node("Mul", ["re", "re"], ["re2"]),
        helper.make_node("Mul", ["im", "im"], ["im2"]),
        helper.make_node("Add", ["re2", "im2"], ["power"]),
        helper.make_node("Transpose", ["power"], ["frames"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["frames", "bands"], ["sums"], "sums"),
        helper.make_node("Add", ["sums", "least"], ["positive"]),
        helper.make_node("Log", ["positive"], ["features"]),
        helper.make_node("MatMul", ["features", "weights"], ["y"], "head"),
    ]
    ends = [helper.make_tensor_value_info("x", 1, ["N", 1, _LENGTH])]
    outs = [helper.make_tensor_value_info("y", 1, ["N", None, 8])]
    arrays = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "log_mel", ends, outs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sounds(count: int, seed: int) -> list[Feed]:
    """Return sums of decaying tones with little noise."""
    rng, times = np.random.default_rng(seed), np.arange(_LENGTH) / 8000

    def _tone() -> np.ndarray:
        wave = np.sin(2 * np.pi * rng.uniform(80, 3500) * times + rng.uniform(0, 6))
        return np.asarray(rng.uniform(0.05, 0.3) * wave * np.exp(-rng.uniform(0, 40) * times))

    waves = (sum(_tone() for _ in range(4)) + rng.normal(0, 0.003, _LENGTH) for _ in range(count))
    return [{"x": wave[None, None].astype(np.float32)} for wave in waves]
