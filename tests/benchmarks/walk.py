"""How far a reader has to go to follow one call, and what it loads: ``python -m tests.benchmarks.walk``.

Quantizes the example by ``onnx_narrow.quantize`` with 16 arrays, a second time under a tracer, and prints how
many named functions of the project it enters, in how many files and how deep, how many lines it runs, and how
often it plans, copies the graph, reads the model and opens files to write. Fresh interpreters tell how many
modules a call and an import load. Figures are counted: they are the same on every machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = tuple(f"{ROOT / name}/" for name in ("ops", "transforms", "tools", "onnx_narrow"))
_MODEL = "tests/examples/digits.onnx"
_COUNTED = {
    "plans": ("quantization_plan.py", "__init__", "QuantizationPlan"),
    "graph copies": ("copy_graph.py", "copy_graph", ""),
    "parses of the model": ("read_model.py", "read", ""),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_TARGETS = {
    "lines that run": 4900,
    "lines that run, fast": 3600,
    "named functions": 1050,
    "files": 170,
    "frames": 26,
    "plans": 6,
    "graph copies": 6,
    "parses of the model": 1,
    "files written beside the output": 0,
    "modules of tools": 0,
    "modules loaded": 300,
    "lines loaded": 36_000,
    "modules of transforms.insert_cast": 30,
    "lines of transforms.insert_cast": 3500,
    "modules of transforms.insert_qdq": 100,
    "lines of transforms.insert_qdq": 12_000,
}
_CALL = f"""
import numpy as np, onnx_narrow
samples = [np.random.default_rng(i).random((1, 1, 8, 8), np.float32) for i in range(16)]
onnx_narrow.quantize("{_MODEL}", config="A8W8", data=samples, progress=lambda *_: None)
"""
_LOADED = """
import sys
from pathlib import Path
ours = ("ops", "transforms", "tools", "onnx_narrow")
found = [one for name, one in sys.modules.items() if name.split(".")[0] in ours]
files = {one.__file__ for one in found if getattr(one, "__file__", None) and one.__file__.endswith(".py")}
print(len(files), sum(Path(file).read_text().count("\\n") for file in files))
"""


class Walk:
    """Counts calls of functions of the project; comprehensions and lambdas have no names and do not count."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.functions: set[CodeType] = set()
        self.lines: set[tuple[str, int]] = set()
        self.deepest = 0
        self.calls: Counter[str] = Counter()
        self.written: set[str] = set()
        self._depth = 0

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Take a call of the interpreter; the lines of functions of the project are traced, too."""
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGES):
            return None
        is_named = not code.co_name.startswith("<")
        if is_named:
            self._enter(code, frame)
        return self._line if is_named else self._line_of_unnamed

    def _enter(self, code: CodeType, frame: FrameType) -> None:
        self._depth += 1
        self.deepest = max(self.deepest, self._depth)
        self.functions.add(code)
        for name, (file, function, owner) in _COUNTED.items():
            is_it = code.co_filename.endswith(f"/{file}") and code.co_name == function
            if is_it and (not owner or type(frame.f_locals.get("self")).__name__ == owner):
                self.calls[name] += 1

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":
            self._depth -= 1
        return self._line_of_unnamed(frame, event, _) and self._line

    def _line_of_unnamed(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line_of_unnamed

    def figures(self) -> dict[str, int]:
        """Return what was counted."""
        return {
            "lines that run": len(self.lines),
            "named functions": len(self.functions),
            "files": len({code.co_filename for code in self.functions}),
            "frames": self.deepest,
            **{name: self.calls[name] for name in _COUNTED},
            "files written beside the output": len(self.written),
            "modules of tools": sum(name.split(".")[0] == "tools" for name in sys.modules),
        }


def walk(*, fast: bool = False) -> dict[str, int]:
    """Return the figures of one call."""
    import onnx_narrow

    rng = np.random.default_rng(0)
    samples = [rng.random((1, 1, 8, 8), np.float32) for _ in range(16)]
    # Imports are no steps of the call.
    onnx_narrow.quantize(_MODEL, config="A8W8", data=samples, fast=fast)
    found, is_watching = Walk(), False

    def _watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not is_watching or event != "open" or not isinstance(arguments[0], str | Path):
            return
        if arguments[2] & _WRITING:
            found.written.add(str(arguments[0]))

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "o.onnx"
        sys.addaudithook(_watch)
        is_watching = True
        sys.settrace(found.trace)
        try:
            onnx_narrow.quantize(_MODEL, output, config="A8W8", data=samples, fast=fast)
        finally:
            sys.settrace(None)
            is_watching = False
        found.written = {name for name in found.written if "o.onnx" not in Path(name).name}
    return found.figures()


def loaded(code: str) -> tuple[int, int]:
    """Return how many modules of the project, with how many lines, a fresh interpreter loads to run code."""
    done = subprocess.run(
        [sys.executable, "-c", code + _LOADED], capture_output=True, text=True, check=True, cwd=ROOT
    )
    modules, lines = done.stdout.splitlines()[-1].split()
    return int(modules), int(lines)


def all_figures() -> dict[str, int]:
    """Return all figures, in the order of their targets."""
    found = walk()
    found["lines that run, fast"] = walk(fast=True)["lines that run"]
    found["modules loaded"], found["lines loaded"] = loaded(_CALL)
    for name in ("insert_cast", "insert_qdq"):
        modules, lines = loaded(f"import transforms.{name}")
        found |= {f"modules of transforms.{name}": modules, f"lines of transforms.{name}": lines}
    return {name: found[name] for name in _TARGETS}


def main() -> None:
    """Print the figures beside their targets."""
    for name, count in all_figures().items():
        print(f"{name:<34}{count:>8,}   target {_TARGETS[name]:,}")


if __name__ == "__main__":
    main()
