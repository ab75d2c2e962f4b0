"""The command line that both converters share."""

from __future__ import annotations

from functools import partial

from tools.cli.command_line import Tool
from tools.cli.job import Job
from tools.cli.shared_help import GATE_HELP, SAMPLES_HELP

_COMMANDS = """\
--input m.onnx --output b.onnx
--input m.onnx --output b.onnx --format bf16
--input m.onnx --output b.onnx --data samples --min-sqnr 40"""

_BRIEF = """\
formats:
  with_cast      (default) Casts to bfloat16 and back on every float tensor between two nodes, on
                 inputs and outputs; weights stored as bfloat16. Standard ONNX: runs on any ONNX
                 Runtime CPU build.
  bf16           every node computes in bfloat16 as far as its operator's schema allows, the rest in
                 float between Casts. For runtimes with BF16 arithmetic: ONNX Runtime's CPU provider
                 has none, its CUDA provider some (--target ort-cuda leaves the others in float).
                 Raises the model to opset 22, the first in which Conv, pooling and recurrent
                 operators take bfloat16.
  simulate_bf16  weights rounded to bfloat16 but stored as float32, one Cast pair per input, nothing
                 else.
  customqdq      ExtendedQuantizeLinear/ExtendedDequantizeLinear pairs where with_cast has Casts,
                 with the same numbers. Needs this package's operator library
                 (ops.register_custom_ops)."""

_DETAILS = f"""\
Before that the graph is optimized (constants and BatchNorm folded, MatMuls on one input merged, decomposed
LayerNorm and GELU fused so that they keep float32 inside), and weights beyond the range of BF16 saturate at
+-3.38953139e38; infinities stay where the model tells them from large numbers: before IsNaN, IsInf,
comparisons, a Where, or a Softmax of which they may fill a row. Arithmetic on shapes,
and inputs that a schema ties to float32, stay as they are.

--data and --min-sqnr keep layers in float, as few as possible, until the SQNR of the written model,
10 log10(sum f^2 / sum (f - q)^2) of each of its float outputs, is at least DB on every fourth sample,
32 at most; of fewer than 16 samples on every third, of fewer than 12 on every second. The SQNR less its
standard error by the jackknife over samples has to be: it holds for other samples then. Layers are chosen on
the others; fewer than four samples do both. The names of their nodes are printed in the form of
--exclude-node; nodes that are excluded already stay excluded. If no choice of layers is enough, nothing is
written. bfloat16 nodes are measured in float32 with their results rounded.

{GATE_HELP}

A folder as --input is converted to a folder: each .onnx file in it, the others are copied.

{SAMPLES_HELP}

exit codes: 0 done; 1 error in the model, the data or the machine; 2 usage; 3 nothing to convert, or
--min-sqnr or --metric is not met: no file is written.
"""


def converter(module: str, words: str | None, source: str) -> Tool:
    """Return a converter of models of type ``source`` ("float32" or "float16")."""
    return Tool(module, "convert_bf16", words, _COMMANDS, _DETAILS, _BRIEF, partial(_work, source))


def _work(source: str, job: Job) -> int:
    from tools.options.package import convert

    return convert(job.with_values(float_type=source))
