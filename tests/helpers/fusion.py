"""What the tests of the fusions share: graphs written as text, running them, and the real models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from transforms.graph import walk
from transforms.model import graph_proto

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
"""Real models, which are not part of the project."""


def parse(
    body: str,
    weights: Mapping[str, NDArray],
    *,
    inputs: str = "float[B,T,16] x",
    outputs: str = "float[B,T,16] y",
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model of nodes without names, given in the text form of ``onnx.parser``."""
    head = f'<ir_version: 8, opset_import: ["": {opset}]>'
    built = onnx.parser.parse_model(f"{head} main ({inputs}) => ({outputs}) {{ {body} }}")
    used = {name for node in _all_nodes(built.graph) for name in node.input}
    arrays = {name: np.asarray(array) for name, array in weights.items() if name in used}
    built.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.checker.check_model(built, full_check=True)
    return built


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    bodies = [attribute.g for node in graph.node for attribute in node.attribute]
    return [*graph.node, *(node for body in bodies for node in _all_nodes(body))]


def load(model: onnx.ModelProto) -> gs.Graph:
    """Return the model as a graph with inferred shapes."""
    return graph_proto.import_model(model)


def export(graph: gs.Graph) -> onnx.ModelProto:
    """Return the graph as a model that the full checker accepts."""
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, **feeds: NDArray) -> list[NDArray]:
    """Return the model's outputs, computed by ONNX Runtime node by node without its own fusions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def operators(graph: gs.Graph) -> Counter[str]:
    """Return how often each operator occurs, in all bodies."""
    return Counter(node.op for node in walk.nodes(graph))


def real_model(name: str) -> onnx.ModelProto:
    """Return one of the real models; skips the test where they are absent."""
    path = MODELS / name / "model.onnx"
    if not path.exists():
        pytest.skip(f"no {path}")
    return onnx.load(path)


def relative_error(result: NDArray, expected: NDArray) -> float:
    """Return the L2 norm of the difference over that of what was expected."""
    difference = result.astype(np.float64) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected.astype(np.float64)))


def random_feeds(built: onnx.ModelProto) -> dict[str, NDArray]:
    """Random input, dynamic dimensions 4, tokens and bytes below 200 and masks of ones."""
    random, feeds = np.random.default_rng(3), {}
    for entry in built.graph.input:
        shape = [dim.dim_value or 4 for dim in entry.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
        high = 2 if "mask" in entry.name else 200
        integers = np.ones(shape) if high == 2 else random.integers(0, high, shape)
        feeds[entry.name] = (random.normal(size=shape) if dtype.kind == "f" else integers).astype(dtype)
    return feeds
