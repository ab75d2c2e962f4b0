"""Fixtures that several test modules share."""

from __future__ import annotations

import os

# Before NumPy is imported: two threads for each product of a process on each core would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import platform
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.refusal import TOOLS, Scene
from transforms.pipelines import place, try_out
from transforms.pipelines.place import place as placing
from transforms.run.beside_float import time_beside_float
from transforms.runtime.processor import sums_saturate

# The same examples in every run, however slow the machine is; others: --hypothesis-profile=default.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_report_header() -> str:
    """Say which processor the suite runs on."""
    sums = "saturate at 16 bits" if sums_saturate() else "are exact"
    return f"processor: {platform.machine()}, 8-bit sums {sums} in ONNX Runtime {onnxruntime.__version__}"


@pytest.fixture(params=TOOLS)
def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    """A scene for each of the two converters."""
    return Scene(request.param, tmp_path, capfd, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def untimed() -> Iterator[None]:
    """Leave out the time beside the float model, a quarter of a small run, and decide nothing by time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(try_out, "time_beside_float", lambda *_: None)
        patch.setattr(place, "place", lambda *_: None)
        yield


@pytest.fixture(autouse=True)
def timed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, untimed: None) -> None:
    """Take the time in tests that ask for it."""
    if "timed" in request.keywords:
        monkeypatch.setattr(try_out, "time_beside_float", time_beside_float)
        monkeypatch.setattr(place, "place", placing)
