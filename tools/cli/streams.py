"""Standard streams of a tool: open, and able to show any file name."""

from __future__ import annotations

import io
import os
import sys

_NAMES = ("stdin", "stdout", "stderr")


def repair() -> None:
    """Open closed streams on the null device, and show characters that cannot be shown as escapes.

    The next file to be opened would get the number of a closed stream, and receive its output.
    """
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_unwritable() -> None:
    """Redirect output that cannot be written to the null device: Python would try again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
