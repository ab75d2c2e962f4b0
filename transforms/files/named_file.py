"""Errors of reading a file, whoever raises them, say which file it is and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_WORDS: dict[type[Exception], str] = {
    MemoryError: "it claims too much memory",
    RecursionError: "it is nested too deeply",
    EOFError: "it is cut short",
}


@contextmanager
def named(path: str | Path, kind: type[ValueError] = ValueError) -> Iterator[None]:
    """Turn whatever a reader raises on the content of a file into one error of ``kind`` that names the file.

    An OSError that names a file passes as it is, and so does a ValueError that names this one.
    """
    try:
        yield
    except Exception as error:  # readers of archives, images and graphs share no narrower class
        if isinstance(error, OSError) and error.filename:
            raise
        if isinstance(error, ValueError) and f"'{path}'" in str(error):
            raise
        raise kind(f"'{path}' cannot be read: {in_words(error)}") from error


def in_words(error: Exception) -> str:
    """Return one line on what is wrong; the type of an error that has no words, or odd ones, comes after."""
    for known, words in _IN_WORDS.items():
        if isinstance(error, known):
            return words
    text, name = " ".join(str(error).split()), type(error).__name__
    if not text:
        return f"the reader fails ({name})"
    return text if isinstance(error, ValueError | OSError) else f"{text} ({name})"
