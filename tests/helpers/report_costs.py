"""Reports whose page is tested, and not the time and memory on it."""

from __future__ import annotations

import pytest

from tests.helpers.serial_executor import SerialExecutor
from transforms.compare import measure_run
from transforms.run import beside_float

_RUNS = 2


def measure_here(patch: pytest.MonkeyPatch) -> None:
    """Let time and memory be measured in this process, not in two new ones, and in few runs."""
    patch.setattr(measure_run, "open_processes", lambda jobs: SerialExecutor())
    patch.setattr(beside_float, "_MOST", _RUNS)
    patch.setattr(beside_float, "_FEWEST", _RUNS)
