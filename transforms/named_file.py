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
        text = " ".join(str(error).split())
        if isinstance(error, ValueError) and f"'{path}'" in text:
            raise
        raise kind(f"'{path}' can not be read: {_words(error, text)}") from error


def _words(error: Exception, text: str) -> str:
    for known, words in _IN_WORDS.items():
        if isinstance(error, known):
            return words
    name = type(error).__name__
    return (
        (f"{text} ({name})" if text else name) if type(error) not in (ValueError, OSError) else text or name
    )
