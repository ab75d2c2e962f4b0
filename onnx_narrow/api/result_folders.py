"""Folders of results: one for each output of a model, in which each sample has a file of its name."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from transforms.files.cleanup import destination
from transforms.files.model_files import clear_leftovers
from transforms.files.output_file import GENERATED
from transforms.files.spelling import spelled
from transforms.run.array_files import is_litter

_LONGEST = 255
"""Bytes of a name on the file systems of Linux, macOS and Windows."""

_DIGITS = 16
"""Hexadecimal digits that distinguish truncated names: a collision is expected among 2^32 of them."""


def check_folder(folder: Path, *, force: bool) -> None:
    """Raise OSError, before any work, for a folder that cannot be made, or is not empty unless ``force``."""
    _refuse_file(folder)
    if not Path(os.path.realpath(folder)).parent.is_dir():
        raise FileNotFoundError(
            f"folder '{folder.parent}', in which to make the output folder, does not exist"
        )
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise FileExistsError(f"output folder '{folder}' is not empty; {spelled('{force}')} writes into it")


def check_results(folder: Path, names: Sequence[str]) -> None:
    """Raise before any work if a result cannot be written, or its path is not a regular file."""
    _refuse_file(folder)
    if not folder.is_dir():
        return
    clear_leftovers(folder)
    for name in names:
        destination(folder / f"{name}.npy")


def output_folders(folder: Path, outputs: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each output, named after it as far as file systems allow.

    The names follow from those of the outputs alone: results of two models with the same outputs lie in
    folders of the same names. No two differ in case alone, and ``evaluate`` takes none for litter.
    """
    if len(outputs) == 1 and outputs[0] != GENERATED:
        return {outputs[0]: folder}
    folders: dict[str, Path] = {}
    used_names: set[str] = set()
    for i, output in enumerate(outputs):
        name = next(name for name in _proposed(output, i) if _is_free(name, used_names))
        used_names.add(name.lower())
        folders[output] = folder / name
    return folders


def _refuse_file(folder: Path) -> None:
    if folder.is_symlink() and not folder.exists():
        raise NotADirectoryError(f"output '{folder}' is a link to a folder that does not exist")
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"output '{folder}' is a file, not a folder")


def _proposed(output: str, i: int) -> Iterator[str]:
    """Yield folder names for the output with a number; long ones are truncated and end in a hash."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", output).strip(".") or f"output_{i}"
    if len(name) > _LONGEST:
        end = hashlib.sha256(output.encode()).hexdigest()[:_DIGITS]
        name = f"{name[: _LONGEST - _DIGITS - 1]}_{end}"
    yield name
    for number in itertools.count(i):
        end = f"_{number}"
        yield name[: _LONGEST - len(end)] + end


def _is_free(name: str, taken: Container[str]) -> bool:
    return name.lower() not in taken and not is_litter(name)
