"""Where the weights of a model lie that its file only names.

A name in a model is the word of whoever made the model: it may lead to nothing outside of the model's folder.
A link in that folder may come with the model, in an archive, too: it is followed where it leads to a file in
the folder, in one beside it, or beside the file that the model itself is a link to; and in the cache of
huggingface_hub, in which models and data are links from ``snapshots`` to ``blobs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def external_file(model: Path, location: str) -> Path:
    """Return the file, links resolved, in which a model says that data are.

    The model's folder is that of its path, also where that is a link. Raises ValueError, which goes on after
    the words "external data 'NAME'", for an absolute path, one that leaves the folder by ``..``, a link to
    somewhere else, and anything else than a regular file.
    """
    file, name = model.parent / location, Path(location)
    if name.is_absolute():
        raise ValueError(f"has an absolute path, which lies outside the folder of '{model}'")
    if ".." in name.parts and not is_inside(file, model):
        raise ValueError(f"lies outside the folder of '{model}'")
    if "\0" in location:
        raise ValueError("is not a legal path")
    found = Path(os.path.realpath(file))
    if found.is_file():
        if not any(found.is_relative_to(folder) for folder in _where_links_lead(model)):
            where = f"is a link to '{found}', neither in nor beside its folder"
            raise ValueError(f"beside '{model}' {where}: put a copy of that file in its place")
        return found
    fault = "is not a regular file" if found.exists() else "does not exist"
    if file.is_symlink():
        raise ValueError(f"beside '{model}' is a link to '{found}', which {fault}")
    beside = f"'{model}'{f', a link to {os.path.realpath(model)!r}' if model.is_symlink() else ''}"
    raise ValueError(f"is missing beside {beside}" if not found.exists() else fault)


def _where_links_lead(model: Path) -> Iterator[Path]:
    """Yield the folders to whose files links beside a model may lead."""
    folder = model.parent.resolve()
    yield folder
    yield Path(os.path.realpath(model)).parent
    if folder.parent.parent != folder.parent:  # beside a folder of the root lie all files
        yield folder.parent
    yield from (above.with_name("blobs") for above in folder.parents if above.name == "snapshots")


def is_inside(file: Path, model: Path) -> bool:
    """Return whether a file lies in the folder of a model, links resolved."""
    return file.resolve().is_relative_to(model.parent.resolve())
