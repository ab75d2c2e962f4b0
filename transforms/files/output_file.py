"""Writing files whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from transforms.files.cleanup import destination, replacing
from transforms.files.model_files import clear_leftovers, refuse_source
from transforms.files.spelling import spelled

if TYPE_CHECKING:
    import numpy as np


GENERATED = "generated_tokens"
"""The folder of the tokens that a language model wrote, in a folder of results."""


def check_writable(path: Path, *, force: bool, inputs: Iterable[str | Path | None] = ()) -> None:
    """Raise OSError, before any work, if the folder is missing, or the file exists and not ``force``.

    ValueError if it is not a regular file, or an input. Removes what dead processes left in the folder.
    """
    target = destination(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"folder '{path.parent}' does not exist")
    if path.exists() and not force:
        raise FileExistsError(f"'{path}' exists; {spelled('{force}')} overwrites it")
    refuse_source(path, [Path(one) for one in inputs if one and Path(one).exists()])
    clear_leftovers(target.parent)


def refuse_other_ending(path: Path, what: str, *endings: str) -> None:
    """Raise ValueError for a path of another ending; ``what``: what is written, in words."""
    if path.suffix.lower() not in endings:
        given = f"ends in '{path.suffix}'" if path.suffix else "has no ending"
        raise ValueError(f"output '{path}' {given}: {what} is written to a file that ends in {endings[0]}")


def total_bytes(files: list[Path]) -> int:
    """Return the size of files together; one that another writer has replaced meanwhile counts nothing."""
    total = 0
    for path in files:
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def write_text(path: Path, text: str) -> None:
    """Write the text as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_array(path: Path, array: np.ndarray) -> None:
    """Write the array as .npy."""
    import numpy as np

    with replacing(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
