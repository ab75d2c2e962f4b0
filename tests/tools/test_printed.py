"""Lines and warnings beside bars. Oracle: what is on each line of a terminal in the end."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from tools.cli.command_line import details_once
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


def test_a_detail_is_logged_once_and_a_phase_each_time() -> None:
    """As of a rewrite that needs another opset and is tried on twenty candidates."""
    lines, log = io.StringIO(), logging.Logger("tried")
    handler = logging.StreamHandler(lines)
    handler.addFilter(details_once())
    log.addHandler(handler)
    for _ in range(20):
        log.debug("needs opset %d", 20)
    log.debug("needs opset %d", 17)
    for _ in range(2):
        log.info("quantizing: 0.1 s")
    assert lines.getvalue().splitlines() == ["needs opset 20", "needs opset 17", *["quantizing: 0.1 s"] * 2]
