"""Weights alone, and in blocks. Oracle: ONNX Runtime without fusions, and NumPy's decoding of the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import blocked_nets, tunable
from tools.finetune import main as finetune
from tools.quantize import main

MODEL = blocked_nets.products()
FEED = tunable.samples(MODEL, 60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model and 40 samples."""
    onnx.save(MODEL, tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(FEED[:40]):
        np.save(tmp_path / "data" / f"{i:02}.npy", feed["x"])
    return tmp_path


def _quantize(folder: Path, *options: str, code: int = 0) -> onnx.ModelProto:
    path = folder / "quantized.onnx"
    command = ["--input", str(folder / "float.onnx"), "--output", str(path), "--force", *options]
    assert main(command) == code
    if code:
        return onnx.ModelProto()
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(path)


def _error(model: onnx.ModelProto) -> float:
    """Return the relative error on samples that no tool has seen."""
    results = []
    for one in (MODEL, model):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(one.SerializeToString(), options)
        results.append(np.stack([session.run(None, feed)[0] for feed in FEED[40:]]))
    return float(np.linalg.norm(results[1] - results[0]) / np.linalg.norm(results[0]))


def _scales(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    shapes = {one.name: tuple(one.dims) for one in model.graph.initializer}
    return {n.input[0]: shapes[n.input[1]] for n in model.graph.node if n.op_type == "DequantizeLinear"}


def test_presets_need_no_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, blocks = (_quantize(folder, "--config", name) for name in ("W8", "W4"))
    assert sorted(_scales(whole).values()) == [(7,), (20,), (33,), (48,), (65,)]
    assert sorted(_scales(blocks).values()) == [(2, 20), (2, 33), (4, 65), (7,), (48, 3)]
    assert _error(whole) < 0.02 and _error(blocks) < 0.3
    said = capsys.readouterr().out
    assert said.count("Quantized to int8: 5 weights\n") == said.count("Quantized to int4: 5 weights\n") == 1
    assert "One scale per channel, no blocks of 32: 1 weight, " in said


def test_matmul_nbits_computes_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = _quantize(folder, "--config", "W4")
    nbits = _quantize(folder, "--config", "W4", "--matmul-nbits")
    assert (
        "Written as MatMulNBits: 3 products, 1 weight in blocks with DequantizeLinear\n"
        in capsys.readouterr().out
    )
    assert [node.op_type for node in nbits.graph.node].count("MatMulNBits") == 3
    assert {one.domain: one.version for one in nbits.opset_import}["com.microsoft"] == 1
    assert abs(_error(plain) - _error(nbits)) < 1e-4


def test_matmul_nbits_without_blocks_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _quantize(folder, "--config", "W8", "--matmul-nbits", code=1)
    said = capsys.readouterr().err
    assert said.startswith("tools.quantize: error: --matmul-nbits goes with integers in blocks (")
    assert said.count("\n") == 1


def test_blocks_are_tuned(folder: Path) -> None:
    """In one command, with outputs that choose scales, and by the tool of its own."""
    data = ["--data", str(folder / "data")]
    plain = _error(_quantize(folder, "--config", "W4"))
    tuned = _quantize(folder, "--config", "W4_ADAQUANT", "--matmul-nbits", *data)
    assert _error(tuned) < 0.9 * plain
    assert [node.op_type for node in tuned.graph.node].count("MatMulNBits") == 3
    fitted = _error(_quantize(folder, "--config", "W4", *data))
    assert fitted <= plain
    paths = ["--float", folder / "float.onnx", "--quantized", folder / "quantized.onnx"]
    command = [*paths, "--output", folder / "tuned.onnx", *data]
    assert finetune([str(word) for word in command]) == 0
    assert _error(onnx.load(folder / "tuned.onnx")) <= fitted
    assert sorted(_scales(onnx.load(folder / "tuned.onnx")).values())[-1] == (48, 3)
