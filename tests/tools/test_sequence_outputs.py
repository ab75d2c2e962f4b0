"""Outputs that are sequences of tensors, in the tools that run models. Oracle: the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers import build
from tools import auto_mixed_precision, finetune, quantize, report

WIDTH = 16
NODES = [
    helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
    helper.make_node("Relu", ["h"], ["y"], "relu"),
    helper.make_node("SequenceConstruct", ["h", "y"], ["all"], "collect"),
]


@pytest.fixture(name="paths")
def _paths(tmp_path: Path) -> dict[str, str]:
    random = np.random.default_rng(0)
    ends = [build.value(name, [4, WIDTH]) for name in ("x", "y")]
    sequence = helper.make_tensor_sequence_value_info("all", onnx.TensorProto.FLOAT, None)
    weight = {"w": random.standard_normal((WIDTH, WIDTH)).astype(np.float32)}
    build.save(build.model(NODES, ends[:1], [sequence, ends[1]], weight), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        np.save(tmp_path / "data" / f"{i}.npy", random.standard_normal((4, WIDTH)).astype(np.float32))
    return {name: str(tmp_path / name) for name in ("m.onnx", "q.onnx", "t.onnx", "data", "r.html")}


@pytest.mark.parametrize("config", ("A8W8", "MX4", "W4A8", "W4_ADAQUANT"))
def test_scales_and_weights_are_chosen(config: str, paths: dict[str, str]) -> None:
    words = ["--input", paths["m.onnx"], "--output", paths["q.onnx"], "--data", paths["data"]]
    assert quantize.main([*words, "--config", config]) == 0


@pytest.mark.usefixtures("costs_here")
def test_tuned_reported_and_mixed(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--input", paths["m.onnx"], "--output", paths["q.onnx"], "--data", paths["data"]]
    assert quantize.main([*words, "--config", "A8W8"]) == 0
    pair = ["--float", paths["m.onnx"], "--quantized", paths["q.onnx"], "--data", paths["data"]]
    assert finetune.main([*pair, "--output", paths["t.onnx"]]) == 0
    assert report.main([*pair, "--output", paths["r.html"]]) == 0
    for name in ("all[0]", "all[1]", "y"):
        assert f"output {name}" in capsys.readouterr().out or name in Path(paths["r.html"]).read_text()
    mixed = [*words, "--config", "A16W8", "--target", "int8", "--sqnr-target", "10", "--force"]
    assert auto_mixed_precision.main(mixed) == 0
