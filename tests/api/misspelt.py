"""Calls with misspelt keywords, which mypy has to find: it warns of a comment here that silences nothing."""

from __future__ import annotations

import onnx_narrow


def misspelt() -> None:
    """Never called."""
    onnx_narrow.quantize("m.onnx", min_sqrn=30)  # type: ignore[call-arg]
    onnx_narrow.convert_bf16("m.onnx", formt="bf16")  # type: ignore[call-arg]
    onnx_narrow.finetune("m.onnx", "q.onnx", data="d", algoritm="gptq")  # type: ignore[call-arg]
    onnx_narrow.mix_precision("m.onnx", config="BF16", metrik="l2")  # type: ignore[call-arg]
    onnx_narrow.quantize("m.onnx", min_sqnr="high")  # type: ignore[arg-type]
