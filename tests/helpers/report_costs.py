"""Reports whose page is tested, and not the time and memory on it."""

from __future__ import annotations

import pytest

from tests.helpers.serial_executor import SerialExecutor
from transforms.compare import measure_run

_RUNS = 2


def measure_here(patch: pytest.MonkeyPatch) -> None:
    """Let time and memory be measured in this process, not in three new ones, and in few runs."""
    patch.setattr(measure_run, "open_processes", lambda jobs: SerialExecutor())
    patch.setattr(measure_run, "_RUNS", _RUNS)
    patch.setattr(measure_run, "_FEWEST", _RUNS)
