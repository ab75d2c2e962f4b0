"""Two small networks with known sources of error, for the tests of origins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto, helper

from tests.helpers import build
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.record import Record
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.scheme import Scheme

Feeds = list[dict[str, np.ndarray]]


def chain(spread: float = 200.0, layers: int = 5) -> onnx.ModelProto:
    """Return x [n, 16] through ``layers`` Gemms with Relus; channels of a weight differ by ``spread``.

    That is the third. With one scale for a weight, int8 leaves little of the narrow channels of that one; the
    Gemm after it makes up for the spread.
    """
    random = np.random.default_rng(0)
    weights, nodes, source = {}, [], "x"
    scales = np.geomspace(1, 1 / spread, 16).astype(np.float32)
    for i in range(layers):
        weight = (random.standard_normal((16, 16)) / 4).astype(np.float32)
        weight = weight * scales if i == 2 else weight / scales[:, None] if i == 3 else weight
        weights[f"w{i}"] = weight
        last = i == layers - 1
        made = "y" if last else f"g{i}"
        nodes.append(helper.make_node("Gemm", [source, f"w{i}"], [made], f"gemm{i}"))
        if not last:
            nodes.append(helper.make_node("Relu", [made], [f"r{i}"], f"relu{i}"))
        source = f"r{i}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])]
    return build.model(nodes, inputs, outputs, weights, opset=17)


def feeds(count: int = 8, rows: int = 4) -> Feeds:
    """Return samples of the chain."""
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((rows, 16)).astype(np.float32)} for _ in range(count)]


def options(folder: Path, samples: Feeds) -> list[str]:
    """Write a chain of 8 layers and samples to a folder; return the options that name them and an output."""
    model, data = build.save(chain(layers=8), folder / "m.onnx"), folder / "data"
    data.mkdir()
    for i, feed in enumerate(samples):
        arrays: dict[str, Any] = dict(feed)
        np.savez(data / f"{i:02}.npz", **arrays)
    return ["--input", str(model), "--output", str(folder / "q.onnx"), "--data", str(data)]


def quantized(model: onnx.ModelProto, scheme: Scheme, samples: Feeds) -> tuple[gs.Graph, gs.Graph, Record]:
    """Return the float model as it was quantized, the quantized one, and what was done."""
    graph = model_io.load(model)
    work = run(Work(graph, scheme, CalibrationData(samples), options=Options(keeps_float=True)), IN_MEMORY)
    assert work.base.graph is not None
    return work.base.graph, graph, work.record
