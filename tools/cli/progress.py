"""A progress bar on the terminal for work that tells itself how far it is."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """A bar on stderr, made when the first piece is done, and made anew when the work starts over.

    Shows nothing if stderr is not a terminal.
    """

    def __init__(self, what: str, unit: str) -> None:
        """Name the work and its pieces."""
        self._what, self._unit = what, unit
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, done: int, total: int | None, note: str = "") -> None:
        """Say how many pieces of how many (None: not known) are done."""
        from tqdm import tqdm

        if self._bar is None or done < self._bar.n:
            quiet = not sys.stderr.isatty()
            self._bar = tqdm(desc=self._what, total=total, unit=self._unit, disable=quiet, leave=False)
        self._bar.set_postfix_str(note)
        self._bar.update(done - self._bar.n)
