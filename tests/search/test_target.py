"""Oracle: the inequality that each target stands for."""

from __future__ import annotations

import math

import pytest

from transforms.search.output_metrics import METRICS
from transforms.search.target import EVALUATE, LOST_TOP1, Scored, Target, TargetError


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


def test_a_target_is_shown_by_the_worse_end_of_an_interval() -> None:
    least, most = Target("sqnr", 30.0), Target(LOST_TOP1, 0.01)
    assert least.is_shown(Scored(31.0, 1.0, 4)) and not least.is_shown(Scored(31.0, 1.01, 4))
    assert most.is_shown(Scored(0.005, 0.005, 4)) and not most.is_shown(Scored(0.005, 0.006, 4))
    assert not least.is_shown(Scored(29.9)) and least.is_shown(Scored(math.inf, 0.0, 4))
    with pytest.raises(TargetError, match=r"^x breaks the target: sqnr 31 \+- 1\.5 dB, the target is at "):
        least.check(31.0, "x", 1.5)


def test_the_error_falls_with_the_square_root_of_the_number_of_samples() -> None:
    """With 16 samples in place of 4, an error of 2 dB becomes 1 dB."""
    target = Target("sqnr", 30.0)
    assert target.samples_needed(Scored(31.0, 2.0, 4)) == 16
    assert target.samples_needed(Scored(29.0, 2.0, 4)) is None
    assert target.samples_needed(Scored(30.0, 2.0, 4)) is None
