"""Resolve the external data of a model, safely.

A name in a model is untrusted: it may only lead to the model's folder. A link in that folder may come with
the model, also from an archive: it is followed if its target is in the folder, beside the folder, or beside
the file to which the model itself is a link; and in the cache of huggingface_hub, where models and data are
links from ``snapshots`` to ``blobs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def external_file(model: Path, location: str) -> Path:
    """Return the file, with links resolved, that a model names for its data.

    The model's folder is that of its path, even if that is a link. Raises ValueError, phrased to follow the
    words "external data 'NAME'", for an absolute path, one that leaves the folder by ``..``, a link to
    elsewhere, and anything but a regular file.
    """
    file, name = model.parent / location, Path(location)
    if name.is_absolute():
        raise ValueError(f"has an absolute path, which lies outside the folder of '{model}'")
    if ".." in name.parts and not is_inside(file, model):
        raise ValueError(f"lies outside the folder of '{model}'")
    if "\0" in location:
        raise ValueError("is not a legal path")
    resolved = Path(os.path.realpath(file))
    if resolved.is_file():
        if not any(resolved.is_relative_to(folder) for folder in _where_links_lead(model)):
            where = f"is a link to '{resolved}', neither in nor beside its folder"
            raise ValueError(f"beside '{model}' {where}: put a copy of that file in its place")
        return resolved
    fault = "is not a regular file" if resolved.exists() else "does not exist"
    if file.is_symlink():
        raise ValueError(f"beside '{model}' is a link to '{resolved}', which {fault}")
    beside = f"'{model}'{f', a link to {os.path.realpath(model)!r}' if model.is_symlink() else ''}"
    raise ValueError(f"is missing beside {beside}" if not resolved.exists() else fault)


def _where_links_lead(model: Path) -> Iterator[Path]:
    """Yield the folders into which links beside a model may lead."""
    folder = model.parent.resolve()
    yield folder
    yield Path(os.path.realpath(model)).parent
    if folder.parent.parent != folder.parent:  # the root would contain all files
        yield folder.parent
    yield from (above.with_name("blobs") for above in folder.parents if above.name == "snapshots")


def is_inside(file: Path, model: Path) -> bool:
    """Return whether a file is in the folder of a model, with links resolved."""
    return file.resolve().is_relative_to(model.parent.resolve())
