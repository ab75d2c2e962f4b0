"""Run a converter that must refuse, and hold it to the rules of a refusal.

The exit code is the one expected, stderr ends with one line that begins with the tool's name, and no file
of the scene is added, removed, changed or touched: neither beside the input nor beside the output, in the
current folder or in the folder of temporary files.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import build

TOOLS = {"convert_fp32_to_bf16": np.float32, "convert_fp16_to_bf16": np.float16}

Snapshot = dict[str, tuple[int, int, bytes]]


def snapshot(folder: Path) -> Snapshot:
    """Return mode, time of change and content of everything under the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()).encode() if path.is_symlink() else b""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        changed = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = (status.st_mode, changed, content)
    return found


class Scene:
    """Folders ``in``, ``out``, ``here`` (the current one) and ``temporary``, and a model for the tool."""

    def __init__(
        self, tool: str, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        for name in ("in", "out", "here", "temporary"):
            (folder / name).mkdir()
        patch.chdir(folder / "here")
        patch.setattr(tempfile, "tempdir", str(folder / "temporary"))
        self.tool, self.folder, self._capture = tool, folder, capture
        self.dtype = TOOLS.get(tool, np.float32)
        self.source, self.target = folder / "in" / "model.onnx", folder / "out" / "result.onnx"

    def write(self, model: onnx.ModelProto | bytes | None = None) -> Path:
        """Write a model, by default a valid one, or any bytes, as the input file."""
        if not isinstance(model, bytes):
            model = (model or build.dense(dtype=self.dtype)).SerializeToString()
        self.source.write_bytes(model)
        return self.source

    def convert(self, *options: str, source: Path | str = "", target: Path | str = "") -> tuple[int, str]:
        """Run the tool in this process; return its exit code and what it wrote to stderr."""
        paths = ["--input", str(source or self.source), "--output", str(target or self.target)]
        return self.run(*paths, *options)

    def run(self, *options: str) -> tuple[int, str]:
        """Run the tool with these options alone."""
        main = importlib.import_module(f"tools.{self.tool}").main
        try:
            code = main(list(options))
        except SystemExit as leaving:
            code = leaving.code
        return code, self._capture.readouterr().err

    def refused(self, *options: str, source: Path | str = "", target: Path | str = "", code: int = 1) -> str:
        """Run the tool, assert the rules of a refusal, and return its message."""
        before = snapshot(self.folder)
        found, errors = self.convert(*options, source=source, target=target)
        assert snapshot(self.folder) == before
        return self.message(found, errors, code)

    def message(self, found: int, errors: str, code: int = 1) -> str:
        """Return the one line of the error; only a usage error may show the usage above it."""
        lines = errors.strip().splitlines()
        assert found == code, errors
        if code != 2:
            assert len(lines) == 1, errors
        assert lines[-1].removeprefix("python -m ").startswith(f"tools.{self.tool}: error: ")
        return lines[-1]
