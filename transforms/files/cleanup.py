"""Temporary files and folders of this process, registered by name before they exist.

So a process that ends in the middle of its work can remove them too.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "onnx-narrow-"
_known: set[Path] = set()


@contextmanager
def noted(*paths: Path) -> Iterator[None]:
    """Register files for :func:`remove_all` during the block."""
    _known.update(paths)
    yield
    _known.difference_update(paths)  # not after an exception, unless they are removed: see remove_all


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder that is removed at the end of the block; OSError if it cannot be made."""
    path = Path(tempfile.gettempdir()) / f"{_PREFIX}{secrets.token_hex(8)}"
    with noted(path):
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def remove_all() -> None:
    """Remove all registered files and folders that exist, as far as possible."""
    for path in list(_known):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)
