"""A tool run in a fork of this process, held to time and memory, and judged by what it promises.

A fork costs milliseconds, for nothing is imported again, and a crash or a hang is only the child's.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tests.helpers.forked import forked

SECONDS = 25.0
"""Processor time of a run on a small file: thirty thousand nodes of functions take most of it."""

_PATIENCE = 90.0  # seconds until a run counts as one without end, on a machine that others use as well
_MEGABYTES = 1500
_ADDRESSES = 12 << 30

_HEAVY = (
    "onnx_narrow.api.convert_bf16", "onnx_narrow.api.quantize", "onnx_narrow.api.finetune",
    "onnx_narrow.api.mix_precision", "tools.infer", "tools.evaluate",
    "transforms.run.run_model", "transforms.compare.compare_results", "transforms.run.samples",
    "PIL.PngImagePlugin",
    "tools.auto_mixed_precision", "tools.formats", "tools.quantize", "tools.finetune", "tqdm",
    "tools.check", "tools.inspect",
    "tools.convert_fp32_to_bf16", "tools.convert_fp16_to_bf16", "PIL.JpegImagePlugin",
)  # fmt: skip


_UNFIT = re.compile(r"^Fits [\w-]+: no$", re.MULTILINE)
"""The last word of tools.check, whose exit code 1 is no error then."""

_NOTHING = 3
"""Exit code of a tool that found nothing to do, and says why."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: exit code or minus the signal, what it wrote, processor seconds and peak memory."""

    code: int
    output: str
    errors: str
    seconds: float
    megabytes: float


def run_tool(tool: str, arguments: Sequence[str], folder: Path) -> Outcome:
    """Run ``tools.TOOL`` with arguments in a fork, with its temporary files under a folder."""
    for name in _HEAVY:
        importlib.import_module(name)
    for name in ("tmp", "log", "here"):
        (folder / name).mkdir(exist_ok=True)

    child = forked(lambda: _run_here(tool, arguments, folder))
    status, usage = _wait(child)
    log = folder / "log"
    texts = [(log / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err")]
    seconds = usage.ru_utime + usage.ru_stime
    return Outcome(os.waitstatus_to_exitcode(status), *texts, seconds, usage.ru_maxrss / 1024)


def _run_here(tool: str, arguments: Sequence[str], folder: Path) -> int:
    """Become the tool; return its exit code."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(folder / "log" / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), "utf-8", "backslashreplace")
        for number in (1, 2)
    )
    os.chdir(folder / "here")
    tempfile.tempdir = str(folder / "tmp")
    code: int = importlib.import_module(f"tools.{tool}").main(list(arguments))
    return code


def _wait(child: int) -> tuple[int, resource.struct_rusage]:
    start, pause = time.monotonic(), 0.002
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return status, usage
        if time.monotonic() - start > _PATIENCE:
            os.kill(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            return status, usage
        time.sleep(pause)
        pause = min(pause * 1.2, 0.05)


def fingerprint(folder: Path) -> dict[str, str]:
    """Return what every file under a folder holds, in short; links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = f"link to {path.readlink()}"
        elif path.is_file() and path.stat().st_size < 1 << 26:
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[str(path)] = str(path.lstat().st_mode)
    return found


def fault(outcome: Outcome, names: Sequence[str], written: Path, expected: Sequence[str]) -> str | None:
    """Return what a run did that no tool may do, in a line; None if it held.

    It is done, or nothing was to be done, and every model that was written passes the full checker; or it
    refuses in one line that holds one of the ``names``. In the folder ``written`` lies what is ``expected``,
    when refused only results that are complete.
    """
    errors = " | ".join(outcome.errors.strip().splitlines())[:600]
    if outcome.code < 0:
        return f"ended by signal {-outcome.code} after {outcome.seconds:.1f} s: {errors}"
    nothing_done = outcome.code == _NOTHING and outcome.output.startswith("Nothing to do: ")
    missed = outcome.code == _NOTHING and not nothing_done  # a target, a limit or a rule
    if not (outcome.code in (0, 1) or nothing_done or missed) or "Traceback" in outcome.errors:
        return f"exit code {outcome.code}: {errors[-600:]}"
    if outcome.seconds > SECONDS or outcome.megabytes > _MEGABYTES:
        return f"took {outcome.seconds:.1f} s and {outcome.megabytes:.0f} MB, code {outcome.code}: {errors}"
    left = [str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()]
    if missed and not errors and _UNFIT.search(outcome.output):
        return None
    if outcome.code == 1 or missed:
        return _fault_of_refusal(
            outcome, names, [name for name in left if not name.startswith(("results/", "result.json"))]
        )
    strange = [name for name in left if name.split("/")[0] not in expected]
    return f"left {strange} beside {list(expected)}" if strange else _fault_of_models(written)


def _fault_of_refusal(outcome: Outcome, names: Sequence[str], left: Sequence[str]) -> str | None:
    lines = outcome.errors.splitlines()
    if left:
        return f"refused, but left {list(left)}"
    if len(lines) != 1 or not lines[0].isprintable():
        return f"{len(lines)} lines of error: {outcome.errors[:600]!r}"
    if not any(name in lines[0] for name in names):
        return f"the error names none of {list(names)}: {lines[0][:600]}"
    return None


def _fault_of_models(written: Path) -> str | None:
    for path in written.rglob("*.onnx"):
        try:
            onnx.checker.check_model(str(path), full_check=True)
        except Exception as error:
            return f"wrote a model that the checker refuses: {' '.join(str(error).split())[:400]}"
    return None
