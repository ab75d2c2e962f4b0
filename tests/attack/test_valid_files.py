"""What the attack damages is sound before: every tool takes every scene. Oracle: the judge of the attack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.attack.tool_run import fault, run_tool
from tests.attack.valid_files import lay_out, scenes
from tests.helpers.spread import spread


@pytest.mark.parametrize(("kind", "seed"), spread(scenes(), range(4), of=4))
def test_undamaged_scene_is_done(tmp_path: Path, kind: str, seed: int) -> None:
    scene = scenes()[kind](np.random.default_rng(seed))
    (tmp_path / "out").mkdir()
    lay_out(tmp_path / "in", scene.files)
    outcome = run_tool(scene.tool, scene.arguments(tmp_path / "in", tmp_path / "out"), tmp_path)
    assert outcome.code == 0, outcome
    assert fault(outcome, (), tmp_path / "out", scene.written) is None
