"""A few cases of every kind of attack, and all that fell once; README.md says how to run any number."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack import kinds
from tests.attack.regressions import kept, rerun

CASES = [(kind, 0) for kind in kinds.found()]
"""One of each kind in every run of the suite."""


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_case(kind: str, seed: int, tmp_path: Path) -> None:
    assert kinds.load(kind)(seed, tmp_path) is None


@pytest.mark.parametrize(("kind", "case"), list(kept()))
def test_case_that_fell_once(kind: str, case: str, tmp_path: Path) -> None:
    assert rerun(kind, case, tmp_path) is None


def test_every_kind_is_found() -> None:
    assert "graphs" in kinds.found()
