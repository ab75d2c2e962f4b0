"""The tools called in this process, and what is held against every model that they write."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

import ops
from tests.attack.graphs.single_node import as_arrays
from tools import check, convert_fp16_to_bf16, convert_fp32_to_bf16, infer, inspect, quantize
from transforms import model_io
from transforms.model import graph_proto
from transforms.widen_bf16 import widen_bf16

_TOOLS = {
    "convert_fp32_to_bf16": convert_fp32_to_bf16,
    "convert_fp16_to_bf16": convert_fp16_to_bf16,
    "quantize": quantize,
    "check": check,
    "inspect": inspect,
    "infer": infer,
}
_TYPE = "Error|Exception|Fail|InvalidArgument|Warning|NotImplemented"
_RAW = re.compile(rf": error: (?!ONNX)\w*({_TYPE}): |\(\w*({_TYPE})\)")
"""A message that begins with the type of an exception nobody expected, or has it after the words."""


_FOREIGN = re.compile(
    r".*(Traceback \(most|RuntimeWarning|::\w+\(|onnxruntime_src|Status Message|could not (be )?broadcast"
    r"|could not convert|operands could not|cannot reshape array|shape mismatch: |not aligned"
    r"|setting an array element"
    r"|zero-size array|object has no attribute|invalid value encountered|divide by zero).*"
)
"""Words of C++ code, of NumPy and of Python, none of which says anything to a user.

NumPy's "shape mismatch: " has a colon; "Starts and ends shape mismatch" is what ONNX Runtime's Slice says.
"""


_NOTICE = "Skipped in "
"""The beginning of a line on stderr that is no error: what systems leave in folders was passed over."""


class Fallen(Exception):
    """A claim that did not hold, in one line."""


@dataclass
class Outcome:
    """What a tool did: the model that it wrote, or the line with which it refused, or neither.

    ``is_wrong_here``: a warning says that ONNX Runtime's optimization does not compute the model as it is.
    ``said``: all that was printed, warnings too.
    """

    model: onnx.ModelProto | None
    refusal: str | None
    is_wrong_here: bool = False
    said: str = ""


def call(tool: str, source: Path, target: Path, *options: str) -> Outcome:
    """Run a tool; Fallen if it ends in any other way than with a valid model, or one line that says why.

    Warnings of few samples may be before that line.
    """
    target.unlink(missing_ok=True)
    out, err = io.StringIO(), io.StringIO()
    arguments = ["--input", str(source), "--output", str(target), *options]
    code = _main(tool, arguments, out, err)
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("Warning: ")]
    if code == 1 or (code == 3 and lines):  # of 3: a target that is not met
        if len(lines) != 1 or _RAW.search(lines[0]) or target.exists():
            raise Fallen(f"refused without a clean line: {_line(' / '.join(lines))}")
        return Outcome(None, lines[0].partition(": error: ")[2])
    said = out.getvalue() + err.getvalue()
    if code not in (0, 3):  # 3: nothing to do
        raise Fallen(f"exit code {code}: {_line(' / '.join(lines))}")
    if not target.exists():
        return Outcome(None, None if "Nothing to do" in said else _miss(), said=said)
    try:
        onnx.checker.check_model(str(target), full_check=True)
    except Exception as error:
        raise Fallen(f"the checker refuses the result: {_line(str(error))}") from None
    return Outcome(onnx.load(target), None, "computes it wrongly" in err.getvalue(), said)


def _main(tool: str, arguments: list[str], out: io.StringIO, err: io.StringIO) -> int:
    """Return the exit code of a tool; Fallen if it raises, or lets words of others through to the user."""
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            code: int = _TOOLS[tool].main(arguments)
    except BaseException as error:
        words = _line(f"{error} {err.getvalue()[-200:]}")
        raise Fallen(f"{tool} left with {type(error).__name__}: {words}") from error
    for one in warned:
        if issubclass(one.category, RuntimeWarning):
            place = f"{Path(one.filename).name}:{one.lineno}"
            raise Fallen(f"{tool} let a warning through: {one.message} ({place})")
    foreign = _FOREIGN.search(err.getvalue() + out.getvalue())
    if foreign:
        raise Fallen(f"{tool}, exit code {code}, in words of others: {_line(foreign.group())}")
    return code


def _miss() -> str:
    raise Fallen("exit code 0 without a model or a word")


def _line(text: str) -> str:
    return " ".join(text.split())[:500]


def say(tool: str, *arguments: str) -> tuple[int, str]:
    """Run a tool that writes no model; return its exit code and all that it says."""
    out, err = io.StringIO(), io.StringIO()
    code = _main(tool, list(arguments), out, err)
    errors = [line for line in err.getvalue().splitlines() if not line.startswith(_NOTICE)]
    if errors and (code != 1 or len(errors) != 1 or _RAW.search(errors[0])):
        raise Fallen(f"{tool}, exit code {code}, without a clean line: {_line(err.getvalue())}")
    return code, out.getvalue() + err.getvalue()


def run(
    model: onnx.ModelProto, feeds: dict[str, Any], *, optimized: bool = False, library: bool = True
) -> dict[str, Any]:
    """Return the outputs of a result, with our operators or without; Fallen if it does not load or run."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if library:
        ops.register_custom_ops(options)
    try:
        data = model.SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        results = session.run(names, feeds)
    except Exception as error:
        raise Fallen(f"ONNX Runtime does not run the result: {_line(str(error))}") from None
    return {name: as_arrays(result) for name, result in zip(names, results, strict=True)}


def run_widened(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Run a model of bfloat16 nodes, for which the CPU provider has no kernels, on float32 ones."""
    graph = model_io.load(model)
    widen_bf16(graph)
    return run(graph_proto.export_model(graph), feeds)
