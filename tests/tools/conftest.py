"""Fixtures that tests of several tools share."""

from __future__ import annotations

import pytest

from transforms.compare import measure_run
from transforms.run.tasks import SerialExecutor


@pytest.fixture
def costs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time and memory of a report are measured in this process, not in three new ones: the page is tested."""
    monkeypatch.setattr(measure_run, "open_processes", lambda jobs: SerialExecutor())
