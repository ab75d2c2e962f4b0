"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transforms.files.cleanup import temporary

_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file to write to, which replaces ``path`` if the block succeeds.

    A link stays, and the file that it leads to is replaced. If the block fails or is interrupted, nothing
    changes. Raises the errors of :func:`destination`; an OSError without a file name gets that of the path.
    """
    target = destination(path)
    with naming(path), temporary(target) as file:
        yield file
        file.replace(target)


def destination(path: Path) -> Path:
    """Return the file that writing to ``path`` makes or replaces: the target of a link, else ``path``.

    Raises ValueError for a folder, a device and anything else that is not a regular file, OSError for links
    in a circle and for a link into a folder that does not exist.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        raise ValueError(f"'{path}' is a {_KINDS.get(stat.S_IFMT(mode), 'special file')}, not a file")
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if mode is not None and not target.exists():
        raise ValueError(f"'{path}' is a link to a file without a name, which cannot be replaced")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"'{path}' is a link into folder '{target.parent}', which does not exist")
    return target


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError without a file name that of the path."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def make_durable(folder: Path) -> None:
    """Flush the directory entries of a folder to disk, if the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
