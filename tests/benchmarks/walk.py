"""How far a reader has to go to follow one call: ``python -m tests.benchmarks.walk``.

Quantizes the example by ``onnx_narrow.quantize`` with 16 arrays, under a profiler hook, and prints how many
named functions of the project it enters, in how many files and how deep, and how often it plans, copies the
graph, reads the model and opens files to write. Figures are counted: they are the same on every machine.
"""

from __future__ import annotations

import os
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
    "named functions": 950,
    "files": 150,
    "frames": 28,
    "plans": 6,
    "graph copies": 6,
    "parses of the model": 1,
    "files written beside the output": 0,
    "modules of tools": 0,
}


class Walk:
    """Counts calls of functions of the project; comprehensions and lambdas have no names and do not count."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.functions: set[CodeType] = set()
        self.deepest = 0
        self.calls: Counter[str] = Counter()
        self.written: set[str] = set()
        self._depth = 0

    def hook(self, frame: FrameType, event: str, _: Any) -> None:
        """Take an event of the interpreter."""
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGES) or code.co_name.startswith("<"):
            return
        if event == "call":
            self._depth += 1
            self.deepest = max(self.deepest, self._depth)
            self.functions.add(code)
            for name, (file, function, owner) in _COUNTED.items():
                is_it = code.co_filename.endswith(f"/{file}") and code.co_name == function
                if is_it and (not owner or type(frame.f_locals.get("self")).__name__ == owner):
                    self.calls[name] += 1
        elif event == "return":
            self._depth -= 1

    def figures(self) -> dict[str, int]:
        """Return what was counted."""
        return {
            "named functions": len(self.functions),
            "files": len({code.co_filename for code in self.functions}),
            "frames": self.deepest,
            **{name: self.calls[name] for name in _COUNTED},
            "files written beside the output": len(self.written),
            "modules of tools": sum(name.split(".")[0] == "tools" for name in sys.modules),
        }


def walk() -> dict[str, int]:
    """Return the figures of one call."""
    import onnx_narrow

    rng = np.random.default_rng(0)
    samples = [rng.random((1, 1, 8, 8), np.float32) for _ in range(16)]
    # Imports are no steps of the call.
    onnx_narrow.quantize(_MODEL, config="A8W8", data=samples[:2], fast=True)
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
        sys.setprofile(found.hook)
        try:
            onnx_narrow.quantize(_MODEL, output, config="A8W8", data=samples)
        finally:
            sys.setprofile(None)
            is_watching = False
        found.written = {name for name in found.written if "o.onnx" not in Path(name).name}
    return found.figures()


def main() -> None:
    """Print the figures beside their targets."""
    for name, count in walk().items():
        print(f"{name:<34}{count:>8,}   target {_TARGETS[name]:,}")


if __name__ == "__main__":
    main()
