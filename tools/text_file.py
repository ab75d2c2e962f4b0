"""Writing a small text file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def check_writable(path: Path, *, force: bool) -> None:
    """Raise OSError, before any work, when the folder is missing, or the file exists and not ``force``."""
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder, not a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"folder '{path.parent}' does not exist")
    if path.exists() and not force:
        raise FileExistsError(f"'{path}' exists; --force overwrites it")


def write_text(path: Path, text: str) -> None:
    """Write the text as UTF-8 under another name and rename it; nothing is left behind when that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
