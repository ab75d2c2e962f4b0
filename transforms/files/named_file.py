"""Make every error of reading a file name the file and the reason."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transforms.files.paths import AnyPath
from transforms.files.runtime_message import is_of_runtime, said_by_runtime

_IN_WORDS: dict[type[Exception], str] = {
    MemoryError: "it claims too much memory",
    RecursionError: "it is nested too deeply",
    EOFError: "it is cut short",
}


def read_text(path: Path, most: int, encoding: str = "utf-8") -> str:
    """Return the text in a file; ValueError for a device, or for more than ``most`` bytes, OSError."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("it is not a regular file")
    if path.exists() and path.stat().st_size > most:
        raise ValueError(f"{path.stat().st_size:,} bytes, at most {most:,} are read")
    return path.read_text(encoding=encoding)


@contextmanager
def named(path: AnyPath, kind: type[ValueError] = ValueError) -> Iterator[None]:
    """Turn any error of a reader about the content of a file into one error of ``kind`` that names the file.

    An OSError that names a file is unchanged, and so is a ValueError that names this file.
    """
    name = os.fspath(path)
    try:
        yield
    except Exception as error:  # readers of archives, images and graphs share no narrower class
        if isinstance(error, OSError) and error.filename:
            raise
        if isinstance(error, ValueError) and f"'{name}'" in str(error):
            raise
        raise kind(f"'{name}' cannot be read: {in_words(error)}") from error


def in_words(error: Exception) -> str:
    """Return the error in one line, with its type if the message is empty or not self-explanatory."""
    for kind, words in _IN_WORDS.items():
        if isinstance(error, kind):
            return words
    name = type(error).__name__
    if not str(error).strip():
        return f"the reader fails ({name})"
    text = said_by_runtime(error)
    speaks_for_itself = isinstance(error, ValueError | OSError) or is_of_runtime(error)
    return text if speaks_for_itself else f"{text} ({name})"


_LONGEST = 1 << 24
"""Bytes of a settings file: a rule for every layer of the largest models takes a tenth of it."""

_DEEP_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++\s*+\.\s*+){100}""")
"""A key with more than a hundred parts: the parser's time grows with the square of their number."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values in a UTF-8 file, which may begin with a byte order mark; ValueError, OSError."""
    return parse_toml(read_text(path, _LONGEST, "utf-8-sig"))


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a document; ValueError if it is not TOML, or nested too deeply."""
    try:
        if not _DEEP_KEY.search(text):
            return tomllib.loads(text)
    except RecursionError:
        pass
    raise ValueError("values are nested too deeply")
