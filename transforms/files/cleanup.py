"""Files that appear completely or not at all: temporary files, locks, leftovers of dead processes.

Temporary files are registered by name before they exist, so that a process that ends in the middle of its
work can remove them, too. A temporary file beside an output is locked for as long as its process lives: an
unlocked one is a leftover.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED, NOTE = "tmp", "note"
"""Kinds of temporary files: an incomplete output, or a note of files to clean up."""

_PREFIX = "onnx-narrow-"
_NAME = re.compile(rf"\..*\.{_PREFIX}[0-9a-f]{{16}}\.(?:{UNFINISHED}|{NOTE})", re.S)
_LONGEST = 30  # characters of the output's name in the temporary name, which must not get too long
_PAUSE = 0.02  # seconds between two attempts to get a lock
_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
_known: set[Path] = set()
_held = threading.local()


@contextmanager
def noted(*paths: Path) -> Iterator[None]:
    """Register files for :func:`remove_all` during the block."""
    _known.update(paths)
    yield
    _known.difference_update(paths)  # not after an exception, unless they are removed: see remove_all


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder that is removed at the end of the block; OSError if it cannot be created."""
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


@contextmanager
def temporary(path: Path, kind: str = UNFINISHED) -> Iterator[Path]:
    """Yield a new, empty file beside ``path``; it is removed at the end unless it was renamed.

    OSError if it cannot be created.
    """
    file = path.with_name(f".{path.name[:_LONGEST]}.{_PREFIX}{secrets.token_hex(8)}.{kind}")
    with noted(file):
        with locked(path.parent):  # no other process sees the file before it is locked
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            _lock(descriptor)
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)
            os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Return whether a file is named as a temporary one, of any process."""
    return _NAME.fullmatch(name) is not None


def stale_files(folder: Path) -> list[Path]:
    """Return the temporary files in a folder that no process holds; the caller holds the folder's lock."""
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if _is_stale(entry)]
    except OSError:
        return []


def _is_stale(entry: os.DirEntry[str]) -> bool:
    if not is_temporary(entry.name) or not entry.is_file(follow_symlinks=False):
        return False
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _lock(descriptor) is True
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path, patience: float = 60.0) -> Iterator[bool]:
    """Hold the lock of a folder, also against other threads; yield whether it was acquired.

    It is not acquired in a folder that cannot be read or does not support locks, nor if another process
    holds it for more than ``patience`` seconds. A thread that holds it also has it in inner blocks.
    """
    held = _held.__dict__.setdefault("folders", set())
    try:
        key, descriptor = os.path.realpath(folder), os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    if key in held:
        os.close(descriptor)
        yield True
        return
    try:
        end = time.monotonic() + patience
        while (acquired := _lock(descriptor)) is False and time.monotonic() < end:
            time.sleep(_PAUSE)
        if acquired:
            held.add(key)
        yield bool(acquired)
    finally:
        held.discard(key)
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Lock an open file; return False if another process holds the lock, None if locks are not supported."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file to write to, which replaces ``path`` if the block succeeds.

    A link stays, and its target is replaced. If the block fails or is interrupted, nothing changes. Raises
    the errors of :func:`destination`; an OSError without a file name gets that of the path.
    """
    target = destination(path)
    with naming(path), temporary(target) as file:
        yield file
        file.replace(target)


def destination(path: Path) -> Path:
    """Return the file that writing to ``path`` creates or replaces: the target of a link, else ``path``.

    Raises ValueError for a folder, a device or anything else that is not a regular file, OSError for
    circular links and for a link into a folder that does not exist.
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
    """Flush the directory entries of a folder to disk, if the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
