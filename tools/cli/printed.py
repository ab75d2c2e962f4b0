"""What a job reports, on a terminal: bars and warnings on stderr, lines on stdout."""

from __future__ import annotations

import sys
from types import TracebackType

from onnx_narrow.api.bars import Bars
from onnx_narrow.summaries.words import Detail

_MANY = 4
"""Up to so many hidden details are not mentioned."""


class Printed(Bars):
    """Shows the phases of a job, and prints its lines and warnings as they come.

    ``verbose``: details, too.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        """Start with no hidden details."""
        super().__init__()
        self._verbose, self._hidden = verbose, 0

    def note(self, line: str) -> None:
        """Print a line, unless it is a detail and ``verbose`` is off."""
        if isinstance(line, Detail) and not self._verbose:
            self._hidden += 1
            return
        with self.aside():
            print(line)

    def warn(self, line: str) -> None:
        """Print a warning."""
        with self.aside():
            print(line, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the last phase, and mention hidden details if there are many."""
        super().__exit__(kind, error, trace)
        if error is None and self._hidden > _MANY:
            print(f"{self._hidden} lines more: --verbose prints them")
