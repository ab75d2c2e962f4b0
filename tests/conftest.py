"""Fixtures that several test modules share."""

from __future__ import annotations

import os

# Before NumPy is imported: two threads for each product of a process on each core would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.refusal import TOOLS, Scene
from tools.jobs import written

# The same examples in every run, however slow the machine is; others: --hypothesis-profile=default.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(params=TOOLS)
def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    """A scene for each of the two converters."""
    return Scene(request.param, tmp_path, capfd, monkeypatch)


@pytest.fixture(autouse=True)
def untimed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the time beside the float model, a quarter of a small run, unless it is asked for."""
    if "timed" not in request.keywords:
        monkeypatch.setattr(written, "time_beside_float", lambda *_: None)
