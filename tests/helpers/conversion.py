"""Running the converters in this process, and what their results are held against."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
from numpy.typing import NDArray

import ops
from transforms import model_io
from transforms.model import graph_proto
from transforms.widen_bf16 import widen_bf16

FORMATS = ("with_cast", "bf16", "simulate_bf16", "customqdq")


def convert(
    model: onnx.ModelProto, folder: Path, *options: str, tool: str = "convert_fp32_to_bf16"
) -> onnx.ModelProto:
    """Return what the tool makes of a model; assert that it succeeds and passes the checker."""
    source, target = folder / "in.onnx", folder / "out.onnx"
    data = model.SerializeToString(deterministic=True)
    source.write_bytes(data)
    arguments = ["--input", str(source), "--output", str(target), "--force", *options]
    assert importlib.import_module(f"tools.{tool}").main(arguments) == 0
    assert source.read_bytes() == data
    onnx.checker.check_model(str(target), full_check=True)
    return onnx.load(target)


def rewritten(source: gs.Graph, rewrite: Callable[[gs.Graph], int]) -> tuple[int, onnx.ModelProto]:
    """Rewrite a graph twice; the second run changes nothing. Return what the first returned, and the model.

    The checker takes that.
    """
    count = rewrite(source)
    changed = graph_proto.export_model(source)
    assert rewrite(source) == 0
    assert graph_proto.export_model(source) == changed
    onnx.checker.check_model(changed, full_check=True)
    return count, changed


def round_trip(model: onnx.ModelProto) -> onnx.ModelProto:
    """Import and export a model; the checker takes the result, and the source is not changed."""
    before = model.SerializeToString(deterministic=True)
    result = graph_proto.export_model(graph_proto.import_model(model))
    assert model.SerializeToString(deterministic=True) == before, "the source is never changed"
    onnx.checker.check_model(result, full_check=True)
    return result


def run(
    model: onnx.ModelProto, feeds: Mapping[str, NDArray], *, optimize: bool = False
) -> dict[str, NDArray]:
    """Return the outputs by name, with our operators at hand.

    Each node is computed as it stands in the file, or with ``optimize`` as users' sessions do.
    """
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    ops.register_custom_ops(options)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_wrapped(model: onnx.ModelProto, feeds: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Run a bfloat16 model on float32 kernels, every node's result rounded."""
    graph = model_io.load(model)
    widen_bf16(graph)
    return run(graph_proto.export_model(graph), feeds)


def same(a: Mapping[str, NDArray], b: Mapping[str, NDArray]) -> bool:
    """Return whether all outputs are the same bit for bit; NaN equals NaN."""
    return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)


def _equal(a: object, b: object) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(_equal, a, b))
    a, b = np.asarray(a), np.asarray(b)
    numeric = a.dtype.kind == "f"
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=numeric)
