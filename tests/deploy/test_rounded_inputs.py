"""Products whose inputs the runtime rounds to 8 bits. Oracle: the model that ONNX Runtime makes of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from tests.helpers import build
from tools import quantize
from transforms.deploy.rounded_inputs import OPTION, rounded_inputs
from transforms.model import graph_proto

node = helper.make_node
SIZE = 32
BACK_IN = "DequantizeLinear", ["q", "s"], ["w"], "back"
BACK = node(*BACK_IN)
PRODUCT = node("MatMul", ["x", "w"], ["y"], "product")
PAIR = (
    node("QuantizeLinear", ["x", "t", "z"], ["i"], "round"),
    node("DequantizeLinear", ["i", "t", "z"], ["d"], "float"),
)
WIDE_PAIR = (
    node("QuantizeLinear", ["x", "t", "wide"], ["i"], "round", domain="com.microsoft"),
    node("DequantizeLinear", ["i", "t", "wide"], ["d"], "float", domain="com.microsoft"),
)
CASES: dict[str, tuple[Sequence[onnx.NodeProto], Sequence[int], Sequence[int]]] = {
    "one scale": ([BACK, PRODUCT], [], [SIZE, SIZE]),
    "channels": ([node("DequantizeLinear", ["q", "s"], ["w"], axis=1), PRODUCT], [SIZE], [SIZE, SIZE]),
    "Gemm": ([BACK, node("Gemm", ["x", "w", "b"], ["y"])], [], [SIZE, SIZE]),
    "Gemm turned": ([BACK, node("Gemm", ["x", "w"], ["y"], transB=1)], [], [SIZE, SIZE]),
    "Gemm scaled": ([BACK, node("Gemm", ["x", "w", "b"], ["y"], alpha=2.0)], [], [SIZE, SIZE]),
    "on the left": ([BACK, node("MatMul", ["w", "x"], ["y"])], [], [SIZE, SIZE]),
    "stack": ([BACK, PRODUCT], [], [1, SIZE, SIZE]),
    "read twice": ([BACK, PRODUCT, node("MatMul", ["y", "w"], ["z2"])], [], [SIZE, SIZE]),
    "in its own domain": ([node(*BACK_IN, domain="com.microsoft"), PRODUCT], [], [SIZE, SIZE]),
    "16 bits": ([*WIDE_PAIR, BACK, node("MatMul", ["d", "w"], ["y"])], [], [SIZE, SIZE]),
    "16 bits, Gemm turned": ([*WIDE_PAIR, BACK, node("Gemm", ["d", "w"], ["y"], transB=1)], [], [SIZE, SIZE]),
    "integers": ([*PAIR, BACK, node("MatMul", ["d", "w"], ["y"])], [], [SIZE, SIZE]),
}


def _model(nodes: Sequence[onnx.NodeProto], scale: Sequence[int], shape: Sequence[int]) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = {
        "q": random.integers(-128, 128, shape).astype(np.int8),
        "s": np.full(scale, 0.01, np.float32),
        "b": np.ones(SIZE, np.float32),
        "t": np.float32(0.1),
        "z": np.int8(0),
        "wide": np.int16(0),
    }
    read = {name for one in nodes for name in one.input}
    last = nodes[-1].output[0]
    ends = build.value("x", [SIZE, SIZE]), build.value(last, [*shape[:-2], SIZE, SIZE])
    stored = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items() if n in read]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _made_by_the_runtime(model: onnx.ModelProto, folder: Path) -> int:
    """Return how many MatMulNBits ONNX Runtime makes."""
    options, path = ort.SessionOptions(), folder / "optimized.onnx"
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return sum(one.op_type == "MatMulNBits" for one in onnx.load(path).graph.node)


@pytest.mark.parametrize("case", CASES)
def test_they_are_those_that_the_runtime_finds(case: str, tmp_path: Path) -> None:
    if not _made_by_the_runtime(_model(*CASES["channels"]), tmp_path):
        pytest.skip("this version of ONNX Runtime leaves scales for channels alone")
    model = _model(*CASES[case])
    found = rounded_inputs(graph_proto.import_model(model))
    assert len(found) == _made_by_the_runtime(model, tmp_path)


def test_the_option_keeps_inputs_of_16_bits() -> None:
    model, x = _model(*CASES["16 bits"]), np.random.default_rng(1).random((SIZE, SIZE), np.float32)
    plain, kept = ort.SessionOptions(), ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    kept.add_session_config_entry(OPTION, "1")
    sessions = [ort.InferenceSession(model.SerializeToString(), one) for one in (plain, kept)]
    expected, found = (session.run(None, {"x": x})[0] for session in sessions)
    bound = 2 * SIZE * 2.0**-24 * np.abs(expected).max() * SIZE  # sums in another order
    assert np.abs(found - expected).max() <= bound


def test_quantizing_says_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((SIZE, SIZE)).astype(np.float32) for name in ("w", "v")}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "v"], ["y"])]
    ends = build.value("x", [4, SIZE]), build.value("y", [4, SIZE])
    path = build.save(build.model(nodes, [ends[0]], [ends[1]], weights), tmp_path / "m.onnx")
    for config in ("W8", "A8W8", "A16W8", "U16S8"):
        np.savez(tmp_path / "sample.npz", x=np.ones((4, SIZE), np.float32))
        made = tmp_path / f"{config}.onnx"
        data = ["--data", str(tmp_path)] if config != "W8" else []
        assert not quantize.main(["--input", str(path), "--output", str(made), "--config", config, *data])
        said = "round 2 inputs of products to 8 bits" in capsys.readouterr().out
        assert said == (config != "A8W8")
    assert OPTION.startswith("session.")
