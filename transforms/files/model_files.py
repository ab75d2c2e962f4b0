"""A model and its external data are renamed into place together, and leftovers removed.

The order: write a note of data files that may be left over, rename the data, rename the model, remove data
that no model needs any more, remove the note. A process that is killed in between leaves the old model or
the new one, each with its data, and the note, by which the next run cleans up.
"""

from __future__ import annotations

import filecmp
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from transforms.files.atomic_write import make_durable
from transforms.files.data_files import data_files, drop_unused, mentioned
from transforms.files.folder_lock import locked
from transforms.files.temporary_files import NOTE, stale_files, temporary


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
    would be replaced and not ``force``, OSError; the old model and its data are then unchanged.
    """
    folder = target.parent
    with locked(folder) as alone:
        refuse_existing(target, force=force)  # another writer may have been first
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
    stale = stale_files(folder)
    if not stale:
        return
    with locked(folder) as alone:
        notes = [file for file in stale if file.suffix == f".{NOTE}"]
        names = {name for note in notes for name in _read_note(note)}
        for file in stale:
            if file not in notes:
                _remove(file)
        if alone:
            drop_unused(folder, names)
            for note in notes:
                _remove(note)


def _data_of(model: Path) -> set[str]:
    """Return the data files in a model's folder that it names."""
    try:
        return mentioned(model, data_files(model.parent))
    except OSError:
        return set()


def _place_data(data: Path, target: Path, *, force: bool, sources: Sequence[Path]) -> None:
    """Rename data, unless they exist already: another model may have the same."""
    if target.is_file() and not target.is_symlink() and filecmp.cmp(data, target, shallow=False):
        return
    refuse_source(target, sources)
    refuse_existing(target, force=force)
    data.replace(target)
    make_durable(target.parent)


def refuse_existing(target: Path, *, force: bool) -> None:
    """Raise FileExistsError if the file exists and not ``force``."""
    if target.exists() and not force:
        raise FileExistsError(f"output '{target}' exists; --force overwrites it")


def refuse_source(target: Path, sources: Sequence[Path]) -> None:
    """Raise ValueError if a file is one of the sources, also by another name."""
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
