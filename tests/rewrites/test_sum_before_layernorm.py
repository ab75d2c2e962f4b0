"""Adds that a LayerNormalization reads. Oracle: the model before, and the graph that ONNX Runtime makes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.precision.pair_nodes import PairedModels
from transforms.run.run_model import open_model
from transforms.runtime_workarounds import sum_before_layernorm
from transforms.scheme.apply_target import scheme_of
from transforms.scheme.targets import target

RESIDUAL = "p = MatMul(x, w) s = Add(p, x) y = LayerNormalization(s, scale)"
OF_A_CONSTANT = "p = MatMul(x, w) s = Add(p, scale) y = LayerNormalization(s, scale)"


def model(nodes: str, opset: int = 17) -> onnx.ModelProto:
    weights = "<float[4] scale = {1, 2, 1, 2}, float[4,4] w = {1,2,3,4, 2,3,4,1, 3,4,1,2, 4,1,2,3}>"
    return corpus.parse(f"(float[1,6,4] x) => (float[1,6,4] y) {weights} {{ {nodes} }}", opset=opset)


def kernels(path: Path) -> Counter[str]:
    """Return the operators that ONNX Runtime runs for a model."""
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath, settings.log_severity_level = f"{path}.optimized", 4
    onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(settings.optimized_model_filepath).graph.node)


def test_the_runtime_keeps_the_two_apart(tmp_path: Path) -> None:
    graph = model_io.load(model(RESIDUAL))
    model_io.save(graph, tmp_path / "before.onnx")
    assert sum_before_layernorm(graph) == 1 and sum_before_layernorm(graph) == 0
    model_io.save(graph, tmp_path / "after.onnx")
    before, after = (kernels(tmp_path / f"{name}.onnx") for name in ("before", "after"))
    assert before["SkipLayerNormalization"] == 1, "or the rewrite is of no use any more"
    assert after["SkipLayerNormalization"] == 0 and after["Sum"] == after["LayerNormalization"] == 1
    feed = corpus.feeds(model(RESIDUAL))
    made = [open_model(tmp_path / f"{name}.onnx").run(feed)["y"] for name in ("before", "after")]
    np.testing.assert_allclose(*made, rtol=1e-4, atol=1e-5)


def test_an_add_of_a_constant_stays() -> None:
    assert sum_before_layernorm(model_io.load(model(OF_A_CONSTANT))) == 0


@pytest.mark.parametrize("opset", [7, 8])
def test_a_sum_stands_for_an_add_if_it_broadcasts(opset: int) -> None:
    sum_of_two = corpus.parse("(float[6,4] x, float[4] z) => (float[6,4] y) { y = Sum(x, z) }", opset=opset)
    try:
        open_model(model_io.load(sum_of_two)).run({"x": np.ones((6, 4), "f"), "z": np.ones(4, "f")})
        broadcasts = True
    except Exception:  # the runtime's exceptions share no narrower class
        broadcasts = False
    graph = model_io.load(model(RESIDUAL))
    graph.opset = opset
    assert sum_before_layernorm(graph) == broadcasts == (opset == 8)


@pytest.mark.parametrize(("name", "count"), [("ort-cpu", 1), ("openvino", 0)])
def test_models_for_this_runtime_are_written_so_and_told_layer_by_layer(name: str, count: int) -> None:
    source = model(RESIDUAL)
    graph = model_io.load(source)
    scheme = scheme_of(target(name)).by_rule()
    done = run(
        Work(graph, scheme, CalibrationData([corpus.feeds(source)]), options=Options(keeps_float=True)),
        IN_MEMORY,
    )
    assert sum(node.op == "Sum" for node in graph.nodes) == count
    assert done.base.graph is not None
    assert PairedModels(done.base.graph, graph).unpaired == []
