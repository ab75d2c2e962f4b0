"""Weights alone, and in blocks. Oracle: ONNX Runtime without fusions, and NumPy's decoding of the weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import blocked_nets, build, tunable
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
    for line in ("int8: 5 weights", "uint4: 4 weights", "int4: 1 weight"):
        assert said.count(f"Quantized to {line}\n") == 1
    assert "One scale per channel, no blocks of 32: 1 weight, " in said


def test_matmul_nbits_computes_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = _quantize(folder, "--config", "W4")
    nbits = _quantize(folder, "--config", "W4", "--matmul-nbits", "--accuracy-level", "1")
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
    assert said.startswith("tools.quantize: error: --matmul-nbits requires integers in blocks (")
    assert said.count("\n") == 1


def test_accuracy_level_reaches_the_operators(folder: Path) -> None:
    for level in (1, 4):
        model = _quantize(folder, "--config", "W4", "--matmul-nbits", "--accuracy-level", str(level))
        nodes = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
        assert {one.i for node in nodes for one in node.attribute if one.name == "accuracy_level"} == {level}


def test_accuracy_level_without_such_operators_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        _quantize(folder, "--config", "W4", "--accuracy-level", "4")
    assert "--accuracy-level requires --matmul-nbits or --embeddings" in capsys.readouterr().err


def _language(folder: Path) -> None:
    random = np.random.default_rng(0)
    weights = {
        "table": random.standard_normal((300, 64)).astype(np.float32),
        "w": random.standard_normal((64, 64)).astype(np.float32) / 8,
    }
    nodes = [
        onnx.helper.make_node("Gather", ["table", "tokens"], ["states"], "lookup"),
        onnx.helper.make_node("MatMul", ["states", "w"], ["mixed"], "mix"),
        onnx.helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["mixed", "turned"], ["logits"], "head"),
    ]
    ends = build.value("tokens", ["b", "t"], np.int64), build.value("logits", ["b", "t", 300])
    onnx.save(build.model(nodes, [ends[0]], [ends[1]], weights), folder / "float.onnx")


@pytest.mark.parametrize("options", [("--matmul-nbits",), ()])
def test_embeddings_are_stored_with_their_head(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    _language(folder)
    model = _quantize(folder, "--config", "W4", "--embeddings", "int8", *options)
    assert "Stored in int8: 1 embedding\n" in capsys.readouterr().out
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("GatherBlockQuantized") == 1
    assert operators.count("MatMulNBits") == 1 + bool(options)
    assert (folder / "quantized.onnx").stat().st_size < 300 * 64 + 64 * 64 + 6000


def test_embeddings_that_are_excluded_or_missing_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _quantize(folder, "--config", "W4", "--embeddings", "int8", code=1)
    assert "has no embedding that can be stored so" in capsys.readouterr().err
    _language(folder)
    _quantize(folder, "--config", "W4", "--embeddings", "int8", "--exclude-node", "head", code=1)
    said = capsys.readouterr().err
    assert "has no embedding that can be stored so" in said and said.count("\n") == 1
    assert not (folder / "quantized.onnx").exists()


@pytest.mark.parametrize("config", ["A8W8", "BF16", "W4A8"])
def test_embeddings_go_with_any_formats(folder: Path, config: str) -> None:
    """The head is left to the operators of the option, the other layer has the formats of the scheme."""
    _language(folder)
    (folder / "tokens").mkdir()
    for number in range(2):
        feed = {"tokens": np.random.default_rng(number).integers(0, 300, (1, 4))}
        np.savez(folder / "tokens" / f"{number}.npz", **feed)
    data = [] if config == "BF16" else ["--data", str(folder / "tokens"), "--fast"]
    model = _quantize(folder, "--config", config, "--embeddings", "int8", *data)
    operators = Counter(node.op_type for node in model.graph.node)
    assert operators["GatherBlockQuantized"] == operators["MatMulNBits"] == operators["MatMul"] == 1
    assert (folder / "quantized.onnx").stat().st_size < 300 * 64 + 2 * 64 * 64 + 9400


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_of_embeddings_alone(folder: Path, is_tied: bool) -> None:
    """Nothing else takes a format: the table is stored all the same."""
    table = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    nodes = [onnx.helper.make_node("Gather", ["table", "tokens"], ["states"], "lookup")]
    if is_tied:
        nodes.append(onnx.helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]))
        nodes.append(onnx.helper.make_node("MatMul", ["states", "turned"], ["y"], "head"))
    else:
        nodes.append(onnx.helper.make_node("ReduceMean", ["states"], ["y"], "mean", axes=[1], keepdims=0))
    ends = (
        build.value("tokens", ["b", 4], np.int64),
        build.value("y", ["b", 4, 300] if is_tied else ["b", 64]),
    )
    onnx.save(build.model(nodes, [ends[0]], [ends[1]], {"table": table}), folder / "float.onnx")
    _quantize(folder, "--config", "W8", code=3)
    model = _quantize(folder, "--config", "W8", "--embeddings", "int8")
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("GatherBlockQuantized") == 1 and operators.count("MatMulNBits") == is_tied


def test_blocks_are_tuned(folder: Path) -> None:
    """In one command, with outputs that choose scales, and by the tool of its own."""
    data = ["--data", str(folder / "data")]
    plain = _error(_quantize(folder, "--config", "W4", *data[2:]))
    tuned = _quantize(folder, "--config", "W4_ADAQUANT", "--matmul-nbits", *data)
    assert _error(tuned) < 0.9 * plain
    assert [node.op_type for node in tuned.graph.node].count("MatMulNBits") == 3
    fitted = _error(_quantize(folder, "--config", "W4", *data))
    assert fitted <= plain
    paths = ["--float", folder / "float.onnx", "--quantized", folder / "quantized.onnx"]
    command = [*paths, "--output", folder / "tuned.onnx", *data[:2]]
    assert finetune([str(word) for word in command]) == 0
    assert _error(onnx.load(folder / "tuned.onnx")) <= fitted
    assert sorted(_scales(onnx.load(folder / "tuned.onnx")).values())[-1] == (48, 3)
