"""What a job tells, on a terminal: bars and warnings on stderr, lines on stdout."""

from __future__ import annotations

import sys

from onnx_narrow.api.bars import Bars


class Printed(Bars):
    """Shows the phases of a job, and prints its lines and warnings as they come."""

    def note(self, line: str) -> None:
        """Print a line."""
        with self.aside():
            print(line)

    def warn(self, line: str) -> None:
        """Print a warning."""
        with self.aside():
            print(line, file=sys.stderr, flush=True)
