"""Groups of channels of one output. Oracle: squares that NumPy sums up, for each group by itself."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray

from tests.helpers import plans
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.judge.channel_groups import channel_groups, joined_outputs, split
from transforms.judge.judge import Judge
from transforms.pipelines.check_outputs import check_outputs
from transforms.pipelines.work import Work
from transforms.precision.bench import goal_bench
from transforms.scheme import preset
from transforms.search.target import Target

RANDOM = np.random.default_rng(0)
LARGE = 640.0


def detector(noise: float = 0.0, *, scale: float = LARGE) -> gs.Graph:
    """Return boxes [1, 4, 32] joined to scores [1, 3, 32], whose error is ``noise``."""
    text = f"""(float[1,4,32] a, float[1,3,32] b) => (float[1,7,32] y)
        <float large = {{{scale}}}, float off = {{{noise}}}, float less = {{0.001}}> {{
        c = Mul (a, large) s = Sin (b) e = Mul (c, less) g = Add (s, off) f = Add (c, e) i = Sub (f, e)
        y = Concat <axis=1> (i, g) }}"""
    return plans.graph(text)


def feeds(count: int = 4) -> list[dict[str, NDArray[np.float32]]]:
    shapes = {"a": (1, 4, 32), "b": (1, 3, 32)}
    return [{name: RANDOM.random(shape, np.float32) for name, shape in shapes.items()} for _ in range(count)]


FEEDS = feeds()


def score_decibels(noise: float) -> float:
    scores = [np.sin(feed["b"].astype(np.float64)) for feed in FEEDS]
    return float(10 * np.log10(sum(np.square(s).sum() for s in scores) / (noise**2 * 4 * 96)))


def test_the_figure_is_that_of_the_worst_group() -> None:
    noise = 0.1
    made = detector(noise)
    work = Work(made, preset("A8W8"), data=CalibrationData(FEEDS))
    checked = check_outputs(work, detector(), made)
    assert checked is not None and checked.channels == "worst channels of 'y': 4 to 6"
    assert -10 * np.log10(checked.error) == pytest.approx(score_decibels(noise), abs=0.01)
    words = f"SQNR {score_decibels(noise):.1f} +- 0.3 dB (worst channels of 'y': 4 to 6) on 4 samples"
    assert str(checked).startswith(words)


def test_a_target_holds_for_each_group() -> None:
    noise = 0.1
    bench = goal_bench(detector(), FEEDS, Target("sqnr", 10.0))
    assert bench.score(detector(noise)) == pytest.approx(score_decibels(noise), abs=0.01)
    assert goal_bench(detector(), FEEDS, Target("top1", 0.9)).score(detector()) == 1, "of the whole output"


def test_the_judge_compares_each_group() -> None:
    noise = 0.1
    judge = Judge(detector(), FEEDS)
    errors = judge.errors_of(detector(noise))
    assert errors.decibels == pytest.approx([120, score_decibels(noise)], abs=0.01)
    assert judge.reference.columns == ["y", "y"] and judge.reference.outputs == ["y"]


@pytest.mark.parametrize(("scale", "count"), [(1.0, 0), (8.0, 0), (12.0, 1), (LARGE, 1)])
def test_channels_of_similar_ranges_are_one(scale: float, count: int) -> None:
    found = Judge(detector(scale=scale), FEEDS).reference.groups
    assert len(found) == count


def test_what_is_balanced_has_the_power_of_before() -> None:
    graph = detector()
    made = [{"y": array} for array in _outputs(graph)]
    groups = channel_groups(joined_outputs(graph), made)
    parts = split(made[0], groups)
    total = sum(np.square(part).sum() for part in parts.values())
    assert total == pytest.approx(np.square(made[0]["y"]).sum(), rel=0.2)
    powers = [float(np.square(part).mean()) for part in parts.values()]
    assert len(powers) == 2 and powers[0] == pytest.approx(powers[1], rel=0.2)
    assert groups["y"].label(0) == "0 to 3" and groups["y"].label(1) == "4 to 6"
    other = np.zeros((1, 5, 32), np.float32)
    assert all(part is other for part in split({"y": other}, groups).values()), "counts as another shape"


def test_parts_of_zeros_are_no_group() -> None:
    made = [
        {"y": np.concatenate([array[:, :4], np.zeros((1, 3, 32), np.float32)], 1)} for array in _outputs()
    ]
    assert channel_groups(joined_outputs(detector()), made) == {}
    assert channel_groups(joined_outputs(detector()), [{"y": np.zeros((1, 7, 0), np.float32)}]) == {}


def _outputs(graph: gs.Graph | None = None) -> list[NDArray[np.float32]]:
    judge = Judge(graph or detector(), FEEDS)
    return [one["y"] for one in judge.reference.made(["y"])]
