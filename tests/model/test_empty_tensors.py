"""Oracle: ONNX Runtime on the model as it was, without optimizations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ops
from tests.helpers import plans
from tools import convert_fp32_to_bf16, quantize
from transforms import model_io
from transforms.calibrate.calibrate import calibrate
from transforms.model import graph_proto

NO_ROWS = "(float[2,0,4] x) => (float[2,0,5] y) { m = MatMul(x, w) y = Add(m, b) }"
NO_SUM = "(float[2,3,0] x) => (float[2,3,5] y) { m = MatMul(x, w) y = Add(m, b) }"
IN_A_BODY = """(float[2,0,4] x, bool c) => (float[2,0,5] y) {
    y = If (c) <then_branch = t () => (float[2,0,5] p) { m = MatMul(x, w) p = Add(m, b) },
                else_branch = e () => (float[2,0,5] q) { n = MatMul(x, w) q = Sub(n, b) }> }"""


def _model(text: str) -> onnx.ModelProto:
    return plans.model(text, {"w": (0 if text is NO_SUM else 4, 5), "b": (5,)})


def _run(model: bytes, feed: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    ops.register_custom_ops(options)
    return np.asarray(onnxruntime.InferenceSession(model, options).run(None, feed)[0])


@pytest.mark.parametrize("text", (NO_ROWS, NO_SUM, IN_A_BODY))
@pytest.mark.parametrize(
    "options",
    (
        (convert_fp32_to_bf16, "--format", "with_cast"),
        (convert_fp32_to_bf16, "--format", "customqdq"),
        (convert_fp32_to_bf16, "--format", "simulate_bf16"),
        (quantize, "--config", "A8W8", "--random-data", "2"),
        (quantize, "--config", "MX6"),
    ),
)
def test_a_linear_layer_on_no_numbers(
    text: str, options: tuple, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runtime's fusion of MatMul and Add makes a Reshape to [-1, 0] of it, which asks for other sizes."""
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(_model(text), source)
    tool, *rest = options
    code = tool.main(["--input", str(source), "--output", str(target), *rest])
    if not target.exists():
        assert code == 3 and "Nothing to do" in capsys.readouterr().out
        return
    assert code == 0
    onnx.checker.check_model(str(target), full_check=True)
    feed = {"x": np.zeros((2, 3, 0) if text is NO_SUM else (2, 0, 4), np.float32), "c": np.array(True)}
    feed = {one.name: feed[one.name] for one in _model(text).graph.input}
    expected, found = (_run(path.read_bytes(), feed) for path in (source, target))
    np.testing.assert_allclose(found, expected, rtol=2**-6, atol=2**-6)


def test_calibration_runs_on_no_numbers() -> None:
    graph = model_io.load(_model(NO_ROWS))
    found = calibrate(graph, ["x", "y"], [("s", {"x": np.zeros((2, 0, 4), np.float32)})])
    assert all(one.is_empty for one in found.observed.values())
    assert graph_proto.export_model(graph).graph.node
