"""The temporary folder of a call, for what is not in files yet and what is not to be in files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transforms.files.paths import AnyPath


@contextmanager
def workplace() -> Iterator[Path]:
    """Make a folder that is gone in the end."""
    with tempfile.TemporaryDirectory(prefix="onnx_narrow_") as folder:
        yield Path(folder)


def destination(output: AnyPath | None, folder: Path) -> Path:
    """Return where to write a model: the output, or in a folder that is gone in the end."""
    return folder / "made.onnx" if output is None else Path(output)
