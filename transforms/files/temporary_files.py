"""Files under a temporary name until they are complete, and those that dead processes have left.

The name says host and process, and the process holds a lock on the file for as long as it needs it.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transforms.files import cleanup
from transforms.files.folder_lock import lock

UNFINISHED, NOTE = "tmp", "note"
"""Kinds of temporary files: an incomplete output, or a note of files to clean up."""

_NAME = re.compile(r"\..*\.(?P<host>[^.]+)\.(?P<pid>\d{1,9})-(?P<start>\d+)-\d+\.(?P<kind>tmp|note)", re.S)
_LONGEST = 30  # characters of the output's name in the temporary one, which must not be too long
_numbers = itertools.count()


@contextmanager
def temporary(path: Path, kind: str = UNFINISHED) -> Iterator[Path]:
    """Yield a new, empty file beside ``path``; it is removed at the end unless it was renamed.

    OSError if it cannot be made.
    """
    own = f"{_host()}.{os.getpid()}-{_start(os.getpid())}-{next(_numbers)}"
    file = path.with_name(f".{path.name[:_LONGEST]}.{own}.{kind}")
    with cleanup.noted(file):
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            with suppress(OSError):  # without locks, only the process number shows whether it is alive
                lock(descriptor)
            yield file
        finally:
            file.unlink(missing_ok=True)
            os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Whether a file is named as a temporary one, of any process."""
    return _NAME.fullmatch(name) is not None


def stale_files(folder: Path) -> list[Path]:
    """Return the temporary files in a folder whose process on this host is gone."""
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if _is_stale(entry)]
    except OSError:
        return []


def _is_stale(entry: os.DirEntry[str]) -> bool:
    match = _NAME.fullmatch(entry.name)
    if not match or match["host"] != _host() or not entry.is_file(follow_symlinks=False):
        return False
    return not _is_alive(int(match["pid"]), match["start"]) and not _is_locked(entry.path)


def _is_alive(pid: int, start: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return _start(pid) == start


def _is_locked(path: str) -> bool:
    """Whether a process holds the lock: one in a container has the host's name, but numbers of its own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        return not lock(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _start(pid: int) -> str:
    """Return the start time of a process, which distinguishes it from a later one of the same number."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    except (OSError, ValueError):
        return "0"
    return "" if state in "ZX" else fields[18]  # a zombie does not count as alive


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60] or "host"
