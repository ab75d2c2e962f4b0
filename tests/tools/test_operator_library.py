"""Oracle: ONNX Runtime with our library loads a model exactly if no other library is needed."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import onnx
import onnxruntime
import pytest

from tests.helpers import corpus
from tools import convert_fp32_to_bf16, quantize
from transforms.functions.attach_functions import is_own

FOREIGN = "(float[2] x) => (float[2] y) { a = Tanh(x) b = org.example.Odd(a) y = Neg(b) }"
OURS = "this package's (ops.register_custom_ops, or ops.get_library_path)"
INSIDE = "none (standard-operator functions inside; faster with ours)"
OTHER = "one that is not this package's, for the operators of domain 'org.example'"


@pytest.mark.parametrize(
    ("tool", "options", "needed"),
    (
        (convert_fp32_to_bf16, ("--format", "with_cast"), OTHER),
        (convert_fp32_to_bf16, ("--format", "bf16"), OTHER),
        (convert_fp32_to_bf16, ("--format", "customqdq"), OTHER),
        (quantize, ("--config", "BF16"), OTHER),
    ),
)
def test_a_foreign_domain_is_told(
    tool: ModuleType,
    options: tuple[str, ...],
    needed: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(corpus.parse(FOREIGN, domains=', "org.example": 1'), source)
    assert tool.main(["--input", str(source), "--output", str(target), *options]) == 0
    [line] = [one for one in capsys.readouterr().out.splitlines() if one.startswith("Runs on ONNX Runtime")]
    assert line.startswith("Runs on ONNX Runtime CPU: no")
    assert re.search(f"(Operator library needed|Library): {re.escape(needed)}$", line)


def test_what_the_runtime_brings_along_needs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    text = "(float[2] x) => (float[2] y) { a = com.microsoft.FastGelu(x) y = Neg(a) }"
    onnx.save(corpus.parse(text, domains=', "com.microsoft": 1'), source)
    assert convert_fp32_to_bf16.main(["--input", str(source), "--output", str(target)]) == 0
    assert "CPU: yes. Operator library needed: none" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "needed"), (((), INSIDE), (("--no-functions",), OURS)))
def test_functions_take_the_library_s_place(
    options: tuple[str, ...], needed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    text = "(float[2, 16] x, float[16, 16] w) => (float[2, 16] y) { y = MatMul(x, w) }"
    onnx.save(corpus.parse(text), source)
    assert quantize.main(["--input", str(source), "--output", str(target), "--config", "MX6", *options]) == 0
    assert f"Operator library needed: {needed}\n" in capsys.readouterr().out
    assert [is_own(one) for one in onnx.load(target).functions] == ([] if options else [True])
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    if options:
        with pytest.raises(Exception, match="BFPQuantizeDequantize"):
            onnxruntime.InferenceSession(target, settings)
    else:
        onnxruntime.InferenceSession(target, settings)
