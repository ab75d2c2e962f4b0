"""Oracle: the inequality that each target stands for."""

from __future__ import annotations

import math

import pytest

from transforms.search.output_metrics import METRICS
from transforms.search.target import EVALUATE, LOST_TOP1, Target, TargetError


@pytest.mark.parametrize("metric", [*METRICS, LOST_TOP1, EVALUATE])
def test_the_limit_itself_holds_and_nothing_worse(metric: str) -> None:
    target = Target(metric, 0.5)
    worse = {"l2": 1, "kl": 1, LOST_TOP1: 1}.get(metric, -1)
    assert target.larger_is_better is (worse < 0)
    assert target.holds(0.5)
    assert target.holds(0.5 - 0.01 * worse)
    assert not target.holds(0.5 + 0.01 * worse)
    assert not target.holds(math.nan)


def test_relative_targets_are_told_of_what() -> None:
    assert Target("sqnr", 3.0, relative=True).at(40.0) == Target("sqnr", 37.0)
    assert Target("l2", 0.5, relative=True).at(1.0) == Target("l2", 1.5)
    assert Target(EVALUATE, 0.01, relative=True).at(0.9) == Target(EVALUATE, 0.9 - 0.01)
    assert Target("sqnr", 3.0).at(40.0) == Target("sqnr", 3.0)
    assert Target("sqnr", 3.0, relative=True).at(math.inf).holds(math.inf)
    with pytest.raises(AssertionError, match="the reference is not known"):
        Target("sqnr", 3.0, relative=True).holds(40.0)


def test_an_error_names_metric_value_and_limit() -> None:
    Target("sqnr", 30.0).check(30.0, "the model")
    with pytest.raises(TargetError) as caught:
        Target("sqnr", 30.0).check(28.123456789, "the model")
    assert str(caught.value) == "the model breaks the target: sqnr 28.1235 dB, the target is at least 30 dB"
    with pytest.raises(
        TargetError, match=r"^x breaks the target: lost_top1 0\.02, the target is at most 0\.01$"
    ):
        Target(LOST_TOP1, 0.01).check(0.02, "x")
    assert Target("sqnr", 3.0, relative=True).bound == "at most 3 dB worse"
