"""Files of external data, which are named after the model they were written for and their content.

``NAME.HASH.data``, with the first 16 digits of the SHA-256 of its bytes: a model names the data that it was
written with, and cannot end up with those of another.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from transforms.files.temporary_files import is_temporary

_NAME = re.compile(r".+\.[0-9a-f]{16}\.data", re.S)
_DIGITS = 16
_MOST = 4 << 30
"""Bytes that are searched for uses of a file. If there are more, the file stays."""


def data_name(model: str, digest: str) -> str:
    """Return the name of the data with a hexadecimal SHA-256, for a model's name."""
    return f"{model}.{digest[:_DIGITS]}.data"


def data_files(folder: Path) -> set[str]:
    """Return the names of the files in a folder that are named as data."""
    try:
        return {e.name for e in os.scandir(folder) if _NAME.fullmatch(e.name) and _is_own(e)}
    except OSError:
        return set()


def mentioned(file: Path, names: Iterable[str]) -> set[str]:
    """Return those of the names whose bytes occur in a file; an empty set if the file does not exist.

    A model that refers to a file contains its name as plain bytes, as any other known format does.
    """
    names = set(names)
    try:
        if not names or not file.stat().st_size:
            return set()
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return {name for name in names if content.find(os.fsencode(name)) >= 0}
    except FileNotFoundError:
        return set()


def drop_unused(folder: Path, names: Collection[str], keep: Iterable[Path] = ()) -> None:
    """Remove those of the named data files that no file in the folder mentions, except those to ``keep``.

    The caller holds the lock of the folder. A file that cannot be searched, or not in time, counts as a use.
    """
    unused = data_files(folder) & set(names)
    unused -= {name for name in unused for file in keep if file.exists() and file.samefile(folder / name)}
    if not unused:
        return
    try:
        others = list(_others(folder))
        if sum(file.stat().st_size for file in others) > _MOST:
            return
        for file in others:
            unused -= mentioned(file, unused)
        for name in unused:
            (folder / name).unlink(missing_ok=True)
    except OSError:
        return


def _others(folder: Path) -> Iterator[Path]:
    """Yield the files that may use data: not data, nor temporary files, whose writers still have theirs."""
    for entry in os.scandir(folder):
        is_data = _NAME.fullmatch(entry.name) and _is_own(entry)
        if entry.is_file() and not is_data and not is_temporary(entry.name):
            yield Path(entry.path)


def _is_own(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)
