"""Small ONNX models for the tests, built from nodes and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper, numpy_helper

Shape = Sequence[int | str]


def value(name: str, shape: Shape | None, dtype: DTypeLike = np.float32) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, NDArray] | None = None,
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model that the full checker accepts, of IR version 8."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), initializers)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(built, full_check=True)
    return built


def dense(
    width: int = 16, *, layers: int = 1, dtype: DTypeLike = np.float32, opset: int = 17, seed: int = 0
) -> onnx.ModelProto:
    """Return ``x`` ``[rows, width]`` through layers of MatMul ``weight0``... and Relu to ``y``."""
    random = np.random.default_rng(seed)
    names = ["x", *(f"relu{i}_out" for i in range(layers - 1)), "y"]
    weights = {
        f"weight{i}": (random.standard_normal((width, width)) / np.sqrt(width)).astype(dtype)
        for i in range(layers)
    }
    nodes = []
    for i, weight in enumerate(weights):
        nodes.append(helper.make_node("MatMul", [names[i], weight], [f"matmul{i}_out"], f"matmul{i}"))
        nodes.append(helper.make_node("Relu", [f"matmul{i}_out"], [names[i + 1]], f"relu{i}"))
    ends = [value(name, ["rows", width], dtype) for name in ("x", "y")]
    return model(nodes, ends[:1], ends[1:], weights, opset=opset)


def save(built: onnx.ModelProto, path: Path) -> Path:
    """Write the model into one file and return its path."""
    onnx.save(built, path)
    return path


def save_external(built: onnx.ModelProto, path: Path, data: str) -> Path:
    """Write the model with all weights in the file ``data`` beside it; return the model's path."""
    onnx.save(built, path, save_as_external_data=True, location=data, size_threshold=0)
    return path


def edit_external(path: Path, **entries: str) -> Path:
    """Overwrite entries (location, offset, length) of every external tensor of the model file."""
    stored = onnx.load(path, load_external_data=False)
    for tensor in stored.graph.initializer:
        known = {entry.key: entry.value for entry in tensor.external_data} | entries
        del tensor.external_data[:]
        for key, text in known.items():
            tensor.external_data.add(key=key, value=text)
    return save(stored, path)
