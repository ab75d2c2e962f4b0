"""Models whose numbers decide how many rows there are, and Sequences over layers, through the tools.

Oracle: exit codes and words; no tool may let NumPy warn of a number.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests.helpers.report_costs import measure_here
from tools import auto_mixed_precision, convert_fp32_to_bf16, finetune, quantize, report

RNG = np.random.default_rng(3)
BOXES = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float[A,B,C] y, int64[D,E] sel) {
    a = Conv <strides=[2,2], kernel_shape=[3,3]>(x, w)
    r = Reshape(a, shape) t = Transpose <perm=[0,2,1]>(r)
    bx, scl = Split <axis=2>(t, split) b = Abs(bx) sg = Sigmoid(scl) s = Transpose <perm=[0,2,1]>(sg)
    sel = NonMaxSuppression(b, s, most, iou, least)
    i = Gather <axis=1>(sel, two) f = Gather <axis=1>(b, i) y = MatMul(f, w2) }"""
SEQUENCE = """<ir_version: 8, opset_import: ["" : 17]> g (float[3,8] x) => (float[C,D] y) {
    a = MatMul(x, w) s = SplitToSequence <axis=-1>(a, size) u = SequenceAt(s, zero) b = MatMul(u, w2)
    t = SequenceInsert(s, b) v = SequenceAt(t, one) c = Mul(b, v) d = ConcatFromSequence <axis=-1>(t)
    e = Concat <axis=-1>(c, d) y = MatMul(e, w3) }"""


def _weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32) / np.float32(2)


def _integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _write(folder: Path, text: str, constants: dict[str, np.ndarray], shape: tuple[int, ...]) -> Path:
    """Write a model, and six samples of different size beside it."""
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "m.onnx")
    (folder / "data").mkdir()
    for i in range(6):
        x = np.random.default_rng(i).standard_normal(shape) * (1.5, 0.01, 2)[i % 3]
        np.savez(folder / "data" / f"{i}.npz", x=x.astype(np.float32))
    return folder / "m.onnx"


def boxes(folder: Path, least: float = 0.7) -> Path:
    """Write a detector with a layer on the boxes that it finds."""
    constants = {
        **{"w": _weight(6, 3, 3, 3), "shape": _integers(1, 6, -1), "split": _integers(4, 2)},
        **{"most": _integers(5), "iou": np.array([0.5], np.float32), "two": np.array(2)},
        **{"least": np.array([least], np.float32), "w2": _weight(4, 3)},
    }
    return _write(folder, BOXES, constants, (1, 3, 8, 8))


def sequence(folder: Path) -> Path:
    """Write a model whose Sequence is read and grown behind a layer."""
    constants = {
        **{"w": _weight(8, 16), "w2": _weight(8, 8), "w3": _weight(32, 4), "size": np.array(8)},
        **{"zero": np.array(0), "one": np.array(1)},
    }
    return _write(folder, SEQUENCE, constants, (3, 8))


@pytest.fixture(autouse=True)
def _no_warnings() -> None:
    warnings.simplefilter("error", RuntimeWarning)


def _paths(model: Path, *more: str) -> list[str]:
    return ["--data", str(model.parent / "data"), "--force", *more]


def _quantized(model: Path, config: str) -> Path:
    made = model.with_name("q.onnx")
    paths = ["--input", str(model), "--output", str(made)]
    assert quantize.main([*paths, "--config", config, *_paths(model)]) == 0
    return made


@pytest.mark.parametrize("config", ["A8W8", "W4A8"])
def test_a_detector_is_tuned_before_its_boxes(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = boxes(tmp_path)
    made = _quantized(model, config)
    pair = ["--float", str(model), "--quantized", str(made)]
    assert finetune.main([*pair, "--output", str(tmp_path / "t.onnx"), *_paths(model), "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "Skipped: 1 MatMul: numbers decide how many rows it has" in said
    assert "The numbers decide how many rows output 'y' has" in said
    assert "inf -> inf" not in said and "-270" not in said


def test_a_report_says_what_is_not_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the samples have no box."""
    measure_here(monkeypatch)
    model = boxes(tmp_path)
    made, page = _quantized(model, "A8W8"), tmp_path / "r.html"
    pair = ["--float", str(model), "--quantized", str(made)]
    assert report.main([*pair, "--output", str(page), *_paths(model)]) == 0
    said = capsys.readouterr().out
    assert ("Not comparable" in page.read_text()) == ("Not comparable" in said)
    assert "inf dB  output" not in said and "Conv" in page.read_text()


def test_mixed_precision_goes_by_what_is_before_the_boxes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = boxes(tmp_path)
    asked = ["--config", "BF16", "--target", "bfp16", "--sqnr-target", "20"]
    paths = ["--input", str(model), "--output", str(tmp_path / "o.onnx")]
    assert auto_mixed_precision.main([*paths, *asked, *_paths(model)]) == 0
    said = capsys.readouterr().out
    assert "Not moved, for numbers decide how many rows they have: 'MatMul_10'" in said
    assert "Moved 1 of 1 layers" in said


def test_bf16_by_sqnr_goes_by_what_is_before_the_boxes(tmp_path: Path) -> None:
    model = boxes(tmp_path)
    paths = ["--input", str(model), "--output", str(tmp_path / "o.onnx")]
    assert convert_fp32_to_bf16.main([*paths, "--min-sqnr", "60", *_paths(model)]) == 0
    left = onnx.load(tmp_path / "o.onnx").graph.node
    assert any(helper.get_node_attr_value(node, "to") for node in left if node.op_type == "Cast")


@pytest.mark.parametrize("config", ["W4A8", "A8W8_ADAQUANT"])
def test_layers_around_a_sequence_are_tuned(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = sequence(tmp_path)
    made = _quantized(model, config)
    pair = ["--float", str(model), "--quantized", str(made)]
    assert finetune.main([*pair, "--output", str(tmp_path / "t.onnx"), *_paths(model)]) == 0
    assert "of 3 layers" in capsys.readouterr().out
