"""What ONNX Runtime computes on an x86 processor with AVX2 and without VNNI, in an emulator.

Oracles: a session of the same file without optimization, which computes in float32 and does not saturate;
:func:`ops.pair_sums.pair_sums` for what kernels of integers add. All files are run by one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.helpers import plans
from tests.helpers.emulated import HASWELL, run_on
from tests.processors import run_models
from tests.processors.kernels import kernels
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.deploy.saturating_products import saturating_products
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

_IMAGE = "(float[1,{c},9,9] x) => (float[1,{n},9,9] y) {{ y = Conv <pads = [1,1,1,1], group = {g}> (x, w) }}"
LAYERS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "Conv": (_IMAGE.format(c=8, n=6, g=1), (6, 8, 3, 3)),
    "Conv of 1 channel": (_IMAGE.format(c=1, n=6, g=1), (6, 1, 3, 3)),
    "Conv of 3 channels": (_IMAGE.format(c=3, n=6, g=1), (6, 3, 3, 3)),
    "depthwise": (_IMAGE.format(c=16, n=16, g=16), (16, 1, 3, 3)),
    "depthwise, multiplier 2": (_IMAGE.format(c=16, n=32, g=16), (32, 1, 3, 3)),
    "grouped Conv": (_IMAGE.format(c=16, n=32, g=2), (32, 8, 3, 3)),
    "MatMul": ("(float[2,5,24] x) => (float[2,5,16] y) { y = MatMul(x, w) }", (24, 16)),
    "Gemm": ("(float[7,24] x) => (float[7,16] y) { y = Gemm <transB = 1> (x, w) }", (16, 24)),
    "product of activations": (
        "(float[2,7,24] x, float[2,24,16] z) => (float[2,7,16] y) { y = MatMul(x, z) }",
        (),
    ),
}
EXACT = ("depthwise", "product of activations")
"""Layers whose kernels add in 32 bits, whatever the weights are: both activations become uint8."""


def source(layer: str, count: int) -> tuple[onnx.ModelProto, list[run_models.Arrays]]:
    """Return a layer whose weights and activations are nearly as large as they may be, and feeds."""
    random = np.random.default_rng(11)

    def _large(shape: tuple[int, ...]) -> NDArray[np.float32]:
        return random.uniform(0.9, 1, shape).astype(np.float32)

    text, shape = LAYERS[layer]
    model = plans.model(text, {"w": _large(shape)} if shape else None)
    inputs = model_io.load(model).inputs
    return model, [{one.name: _large(one.shape) for one in inputs} for _ in range(count)]


def quantized(layer: str, config: str, saturation: str) -> tuple[onnx.ModelProto, run_models.Arrays]:
    """Return such a layer in 8 bits, and a feed."""
    model, feeds = source(layer, 2)
    graph, scheme = model_io.load(model), preset(config).by_rule().with_(saturation=saturation)
    quantize_graph(graph, scheme, CalibrationData(feeds))
    return graph_proto.export_model(graph), feeds[0]


def _step(folder: Path) -> float:
    """Return the scale of the output of a model."""
    model = onnx.load(folder / "model.onnx")
    last = next(node for node in model.graph.node if "y" in node.output)
    assert last.op_type == "DequantizeLinear"
    scale = next(one for one in model.graph.initializer if one.name == last.input[1])
    return float(numpy_helper.to_array(scale))


def test_sums_are_exact_unless_saturation_is_asked_for(tmp_path: Path) -> None:
    """Kernels and float32 round sums between two numbers of the output to either: to one step."""
    layers = {
        f"{layer}, {config}, {saturation}": (layer, config, saturation)
        for layer in LAYERS
        for config in ("A8W8", "U8S8")
        for saturation in ("avoid", "ignore")
    }
    for name, asked in layers.items():
        model, feed = quantized(*asked)
        run_models.write(tmp_path / name, model, [feed])
    expected = {kernel.name: kernel for kernel in kernels()}
    for name, kernel in expected.items():
        run_models.write(tmp_path / name, kernel.model, [{"x": kernel.x}])

    assert "saturates: True" in run_on(HASWELL, run_models.__file__, tmp_path)

    for name, kernel in expected.items():
        made = run_models.made(tmp_path / name)[0]["y"]
        assert np.array_equal(made, kernel.wanted), name
    for name, (layer, _, saturation) in layers.items():
        folder = tmp_path / name
        (made,), (exact,) = run_models.made(folder), run_models.run(folder, is_optimized=False)
        steps = np.abs(made["y"] - exact["y"]).max() / _step(folder)
        saturates = saturation == "ignore" and layer not in EXACT
        assert steps > 10 if saturates else steps < 1.5, f"{name}: {steps} steps"
        assert bool(saturating_products(model_io.load(folder / "model.onnx"))) is saturates, name
