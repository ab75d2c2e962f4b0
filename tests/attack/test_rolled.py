"""The oracles of models with states: each finds a fault that was put into a result, which is their oracle."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.attack import rolled
from tests.attack.figures import judge_said
from tests.attack.graphs.tool_runs import Fallen
from tests.attack.rolled import Story, held
from tests.helpers import build
from tests.helpers.recurrent import leaky

STEP = 2**-8


def _story() -> Story:
    random = np.random.default_rng(0)
    steps = [{"x": random.standard_normal((1, 8)).astype(np.float32)} for _ in range(6)]
    return Story(leaky(), steps, {"h": "h_out"}, {"h": np.zeros((1, 8), np.float32)})


def test_a_model_is_as_near_as_itself() -> None:
    story = _story()
    default, plain = held(story, story.model, STEP)
    assert default[0]["y"].shape == plain[-1]["y"].shape


def test_states_reach_the_steps_after_them() -> None:
    """The first step is right; what a state loses is seen later."""
    with pytest.raises(Fallen, match=r"'y' of step [1-5] is .* off"):
        held(_story(), leaky(keep=0.5), STEP)


def test_an_error_as_large_as_a_step_passes() -> None:
    held(_story(), leaky(shift=1e-3), STEP)


def test_sessions_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One session runs another model, as a fault of constant folding would have it."""
    runs = [rolled.session_of(leaky(shift=shift), optimized=False) for shift in (0.0, 1.0)]
    monkeypatch.setattr(rolled, "in_both", lambda model: runs)
    with pytest.raises(Fallen, match="sessions differ: 'y' of step 0"):
        held(_story(), leaky(), None)


def test_a_result_that_runs_at_one_size_only_is_found() -> None:
    steps = [{"x": np.ones((rows, 16), np.float32)} for rows in (2, 3)]
    story = Story(build.dense(), steps)
    fixed = onnx.ModelProto.FromString(story.model.SerializeToString())
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(Fallen, match=r"does not run in a default session on {'x': \[3, 16\]}"):
        held(story, fixed, None)


@pytest.mark.parametrize(
    ("said", "is_true"),
    [("Outputs: 20.0 dB on 2 samples", True), ("Outputs: inf dB", False), ("Outputs: 45.0 dB", False)],
)
def test_a_figure_beyond_all_samples_is_found(said: str, is_true: bool) -> None:
    """Errors of a tenth are 20 dB."""
    right = [{"y": np.full(5, 1.0, np.float32)}] * 2
    found = [{"y": np.full(5, 1.1, np.float32)}] * 2
    if is_true:
        judge_said(said, right, [found], ["y"])
    else:
        with pytest.raises(Fallen, match="says"):
            judge_said(said, right, [found], ["y"])
