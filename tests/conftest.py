"""Fixtures that several test modules share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusal import TOOLS, Scene


@pytest.fixture(params=TOOLS)
def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    """A scene for each of the two converters."""
    return Scene(request.param, tmp_path, capfd, monkeypatch)
