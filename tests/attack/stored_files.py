"""Files that the tools make of a small model: ranges in both forms, and weights in blocks in three forms."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from tests.attack.tool_run import run_tool


@lru_cache
def stored_files(model: bytes, samples: tuple[tuple[str, bytes], ...]) -> dict[str, bytes]:
    """Return the contents by name; ``samples`` are the files of the folder ``data``, with their names."""
    forms = {
        "grids.json": "A8W8 --fast --threads 1 --data DIR/data --export-ranges DIR/grids.json",
        "grids.encodings": "A8W8 --fast --threads 1 --data DIR/data --export-ranges DIR/grids.encodings",
        "packed.onnx": "MX6 --storage packed",
        "nbits.onnx": "W4 --matmul-nbits",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        for path, content in (("model.onnx", model), *samples):
            (folder / path).write_bytes(content)
        found = {}
        for file, words in forms.items():
            output = folder / (file if file.endswith(".onnx") else "result.onnx")
            options = f"--input DIR/model.onnx --output {output} --force --config {words}"
            outcome = run_tool("quantize", options.replace("DIR", name).split(), folder)
            assert outcome.code == 0, outcome
            found[file] = (folder / file).read_bytes()
        return found
