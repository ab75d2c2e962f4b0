"""Fixtures that tests of several tools share."""

from __future__ import annotations

import pytest

from tests.helpers import report_costs


@pytest.fixture
def costs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time and memory of reports are measured in this process and in few runs: the page is tested."""
    report_costs.measure_here(monkeypatch)
