"""The progress bar. Oracle: tqdm's own count."""

from __future__ import annotations

import io
import sys

import pytest

from tools.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("tuning", "layer") as bar:
        bar.show(1, 3, "conv 30 dB")
        bar.show(3, 3, "dense 20 dB")
        first = bar._bar
        assert first.n == 3
        bar.show(1, 3, "conv 31 dB")
        assert bar._bar is not first and bar._bar.n == 1
    assert "tuning" in terminal.getvalue()


def test_a_file_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("calibrating", "sample") as bar:
        bar.show(1, None)
    assert capsys.readouterr().err == ""
