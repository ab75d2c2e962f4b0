"""Lines and warnings beside bars. Oracle: what is on each line of a terminal in the end."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from tools.cli.printed import Printed


class Terminal(io.StringIO):
    """A terminal, whose lines are overwritten from a carriage return on."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> Iterator[str]:
        """Yield what is on each line, but for spaces at its end."""
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            yield "".join(cells).rstrip()


def test_lines_are_not_written_behind_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Printed() as told:
        told.note("before any phase")
        told.phase("running", "sample")(1, 2)
        told.note("first")
        told.phase("writing")
        told.warn("second")
        assert "writing" in terminal.getvalue()
    assert [*terminal.shown()] == ["before any phase", "first", "second", ""]
