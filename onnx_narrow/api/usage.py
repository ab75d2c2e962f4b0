"""Keywords of a call: each has a legal value, and its requirements are met."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from onnx_narrow import options
from onnx_narrow.options.option import Keywords
from transforms.files.output_file import check_writable
from transforms.files.spelling import UsageError, as_option, spelled


def checked(job: str, values: Keywords) -> dict[str, Any]:
    """Return the keywords of a call that differ from their defaults, converted to their canonical form.

    Raises TypeError or ValueError for a value of another kind, UsageError for a keyword without effect and
    for two that do not go together.
    """
    rows = options.keywords(job)
    keywords = {
        name: values[name] for name, row in rows.items() if not _is_same(values[name], row.kind.default)
    }
    for name, value in keywords.items():
        rows[name].kind.check(name, value)
    for name, value in keywords.items():
        for need in rows[name].needs_in(job):
            if not need.is_met(keywords):
                raise UsageError(f"{named(name, value)} requires {need}")
    for names, words in options.APART:
        if len(pair := [name for name in names if name in keywords]) > 1:
            raise UsageError(spelled(words.format(*pair)))
    _refuse_own_workers(keywords)
    refuse_same_file(keywords, *options.WRITTEN)
    return {name: rows[name].kind.form(value) for name, value in keywords.items()}


def named(name: str, value: object) -> str:
    """Return a keyword as the caller spells it, in Python or as an option; a False one with its value."""
    return as_option(name, "False" if value is False else "")


def refuse_same_file(keywords: Keywords, *names: str) -> None:
    """Raise UsageError for the first two of some keywords that name the same file."""
    name_by_path: dict[str, str] = {}
    for name in names:
        path = keywords.get(name)
        if not isinstance(path, str | os.PathLike):
            continue
        earlier = name_by_path.setdefault(os.path.realpath(path), name)
        if earlier != name:
            pair = spelled(f"{{{earlier}}} and {{{name}}}")
            raise UsageError(f"{pair} are the same file, '{os.fspath(path)}'")


def _refuse_own_workers(keywords: Keywords) -> None:
    """Raise UsageError for a number of processes together with a running cluster."""
    if keywords.get("dask") not in (None, "local") and "jobs" in keywords:
        words = f"the cluster at '{keywords['dask']}' has its own workers"
        raise UsageError(spelled("{jobs} requires {dask:local}: ") + words)


def fields_in(kind: type[Any], keywords: Keywords) -> dict[str, Any]:
    """Return the keywords that are fields of a dataclass."""
    return {field.name: keywords[field.name] for field in fields(kind) if field.name in keywords}


def files_in(keywords: Keywords, *names: str, inputs: Sequence[object] = ()) -> dict[str, Path]:
    """Return the files that keywords name, after a check that they can be written.

    ``inputs``: paths that are read, which are never overwritten. Raises ValueError or OSError.
    """
    files: dict[str, Path] = {name: keywords[name] for name in names if name in keywords}
    for file in files.values():
        read = [path for path in inputs if isinstance(path, Path)]
        check_writable(file, force=keywords.get("force", False), inputs=read)
    return files


def _is_same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
