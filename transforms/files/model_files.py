"""Rename a model and its external data into place together, and remove leftovers.

The order is: write a note of data files that may be left over, rename the data, rename the model, remove
data that no model needs any more, remove the note. A process killed in between leaves the old model or the
new one, each with its data, and the note, by which the next run cleans up.

External data are in ``NAME.HASH.data``, with the first 16 digits of the SHA-256 of their bytes: a model
names the data with which it was written, and cannot get those of another.
"""

from __future__ import annotations

import filecmp
import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from transforms.files.cleanup import NOTE, is_temporary, locked, make_durable, stale_files, temporary
from transforms.files.spelling import spelled


def put_in_place(
    model: Path,
    target: Path,
    data: tuple[Path, Path] | None = None,
    *,
    force: bool = True,
    sources: Sequence[Path] = (),
) -> None:
    """Rename a written model to ``target`` and its data, if any, from the first to the second path.

    Data files that the replaced model named, and no file in the folder names any more, are then removed;
    ``sources`` never are. Raises ValueError if the data would replace a source, FileExistsError if a file
    would be replaced without ``force``, OSError; the old model and its data are then unchanged.
    """
    folder = target.parent
    with locked(folder) as alone:
        refuse_existing(target, force=force)  # another writer may have been faster
        doubtful = _data_of(target)
        if data and not data[1].exists():
            doubtful.add(data[1].name)
        with _note(target, doubtful if alone else ()):
            try:
                if data:
                    _place_data(*data, force=force, sources=sources)
                model.replace(target)
                make_durable(folder)
            finally:
                model.unlink(missing_ok=True)
                if alone:
                    drop_unused(folder, doubtful, sources)


def clear_leftovers(folder: Path) -> None:
    """Remove unfinished outputs of dead processes from a folder."""
    with locked(folder) as alone:
        stale = stale_files(folder) if alone else []
        notes = [file for file in stale if file.suffix == f".{NOTE}"]
        for file in stale:
            if file not in notes:
                _remove(file)
        drop_unused(folder, {name for note in notes for name in _read_note(note)})
        for note in notes:
            _remove(note)


def _data_of(model: Path) -> set[str]:
    """Return the data files in a model's folder that it names."""
    try:
        return mentioned(model, data_files(model.parent))
    except OSError:
        return set()


def _place_data(data: Path, target: Path, *, force: bool, sources: Sequence[Path]) -> None:
    """Rename data, unless they exist already: another model may have the same data."""
    if target.is_file() and not target.is_symlink() and filecmp.cmp(data, target, shallow=False):
        return
    refuse_source(target, sources)
    refuse_existing(target, force=force)
    data.replace(target)
    make_durable(target.parent)


def refuse_existing(target: Path, *, force: bool) -> None:
    """Raise FileExistsError if the file exists and ``force`` is false."""
    if target.exists() and not force:
        raise FileExistsError(f"output '{target}' exists; {spelled('{force}')} overwrites it")


def refuse_source(target: Path, sources: Sequence[Path]) -> None:
    """Raise ValueError if a file is one of the sources, also under another name."""
    if target.exists() and any(target.samefile(source) for source in sources):
        raise ValueError(f"'{target}' belongs to the input, which is never overwritten")


@contextmanager
def _note(target: Path, names: Collection[str]) -> Iterator[None]:
    """Keep a note of names beside the target while they may be left over."""
    if not names:
        yield
        return
    with temporary(target, NOTE) as note:
        note.write_text("\n".join(sorted(names)), encoding="utf-8", errors="surrogateescape")
        yield


def _read_note(note: Path) -> list[str]:
    try:
        return note.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)


_NAME = re.compile(r".+\.[0-9a-f]{16}\.data", re.S)
_DIGITS = 16
_MOST = 4 << 30
"""Bytes to search for uses of a file. If there are more, the file stays."""


def data_name(model: str, digest: str) -> str:
    """Return the name of a model's data file, given their hexadecimal SHA-256."""
    return f"{model}.{digest[:_DIGITS]}.data"


def data_files(folder: Path) -> set[str]:
    """Return the names of the files in a folder that are named like data files."""
    try:
        return {e.name for e in os.scandir(folder) if _NAME.fullmatch(e.name) and _is_own(e)}
    except OSError:
        return set()


def mentioned(file: Path, names: Iterable[str]) -> set[str]:
    """Return the names whose bytes occur in a file; empty if the file does not exist.

    A model that refers to a file contains its name as plain bytes, as does any other known format.
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
    """Remove named data files that no file in the folder mentions, except those to ``keep``.

    The caller holds the lock of the folder. A file that cannot be searched, or not in time, counts as a use.
    """
    unused = data_files(folder) & set(names)
    unused -= {name for name in unused for file in keep if file.exists() and file.samefile(folder / name)}
    if not unused:
        return
    try:
        users = list(_others(folder))
        if sum(file.stat().st_size for file in users) > _MOST:
            return
        for file in users:
            unused -= mentioned(file, unused)
        for name in unused:
            (folder / name).unlink(missing_ok=True)
    except OSError:
        return


def _others(folder: Path) -> Iterator[Path]:
    """Yield the files that may use data: no data, and no temporary files, whose writers keep their data."""
    for entry in os.scandir(folder):
        is_data = _NAME.fullmatch(entry.name) and _is_own(entry)
        if entry.is_file() and not is_data and not is_temporary(entry.name):
            yield Path(entry.path)


def _is_own(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)
