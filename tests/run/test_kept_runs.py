"""Outputs that are asked for several times. Oracle: the model itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms import model_io
from transforms.run.kept_arrays import IN_MEMORY
from transforms.run.kept_runs import KeptRuns
from transforms.run.run_model import open_model

MODEL = plans.model(
    "(float[N] x) => (float[N] y, float[N] z, float[N] w) { y = Neg(x) z = Abs(x) w = Exp(x) }", {}
)


def test_each_feed_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what is made of it lies in a file."""
    model, ran = open_model(model_io.load(MODEL)), list[int]()
    run = model.run
    monkeypatch.setattr(model, "run", lambda feed, names: ran.append(len(feed["x"])) or run(feed, names))
    feeds = [{"x": np.linspace(-1, 1, count, dtype=np.float32)} for count in (3, IN_MEMORY // 4, 5)]
    kept = KeptRuns(model, ["y", "z", "none of the outputs"])
    for names in (["y"], ["z", "y"], []):
        for feed in feeds:
            made = kept.run(feed, names)
            assert list(made) == names
            assert all(np.array_equal(made[name], run(feed, [name])[name]) for name in names)
    assert ran == [len(feed["x"]) for feed in feeds] and kept.outputs == ("y", "z", "w")
