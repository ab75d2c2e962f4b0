"""The parsers of all tools, and the least that each has to be given."""

from __future__ import annotations

import importlib

from tools.cli.parser import Parser

REQUIRED = {
    "auto_mixed_precision": "--input m.onnx --config BF16_MIXED_BFP16",
    "check": "--target ort-cpu --input m.onnx",
    "convert_fp16_to_bf16": "--input m.onnx --output n.onnx",
    "convert_fp32_to_bf16": "--input m.onnx --output n.onnx",
    "evaluate": "--baseline_results_folder a --quantized_results_folder b",
    "finetune": "--float f.onnx --quantized q.onnx --output t.onnx --data d",
    "formats": "",
    "infer": "--input m.onnx --output o --data d",
    "inspect": "--input m.onnx",
    "quantize": "--config A8W8",
    "report": "--float f.onnx --quantized q.onnx --output r.html --data d",
}


def parser_of(tool: str) -> Parser:
    """Return the parser of a tool."""
    parser: Parser = importlib.import_module(f"tools.{tool}").main.parser()
    return parser
