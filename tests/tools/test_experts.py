"""Experts through the tool. Oracle: NumPy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import experts
from tests.helpers.experts import Experts
from tools.quantize import main

FORM = Experts("silu", is_normalized=True)
WEIGHTS = FORM.weights()


def _quantize(tmp_path: Path, *options: str, code: int = 0) -> Path:
    source, path = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    onnx.save(experts.moe(FORM, WEIGHTS), source)
    command = ["--input", str(source), "--output", str(path), "--no-time", *options]
    assert main(command) == code
    return path


def test_experts_get_the_bits_of_the_scheme(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = _quantize(tmp_path, "--config", "W4", "--matmul-nbits")
    out, err = capfd.readouterr()
    assert "Written as QMoE: 1 mixture of experts, 4 bits\n" in out
    assert "Kept in float: 1 node: MatMul 1\n" in out and not err
    x = np.random.default_rng(3).standard_normal((32, 64)).astype(np.float32)
    wanted = experts.outputs_of(FORM, WEIGHTS, x)
    (made,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - made).sum()) > 20


def test_bits_of_one_mixture_and_exclusion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for bits, block in ((8, 32), (4, 16)):
        rule = ["--set", f"layers.experts.weight=int{bits}", "--force"]
        path = _quantize(tmp_path, "--config", "W4", "--matmul-nbits", *rule)
        (node,) = (node for node in onnx.load(path).graph.node if node.op_type == "QMoE")
        attrs = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        assert (attrs["expert_weight_bits"], attrs["block_size"]) == (bits, block)


def test_in_float_without_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _quantize(tmp_path, "--config", "W8")
    assert "In float: 1 mixture of experts; --matmul-nbits stores them\n" in capsys.readouterr().out


def test_nothing_else_to_quantize_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _quantize(tmp_path, "--config", "W4", code=3)
    assert "  A mixture of experts, which --matmul-nbits stores: MoE 1\n" in capsys.readouterr().out
