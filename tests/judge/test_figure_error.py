"""The error of a printed SQNR. Oracles: Student's interval by hand, and samples that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.judge.errors import Errors
from transforms.judge.figure_error import figure_of


def _errors(values: object) -> Errors:
    errors = np.asarray(values, np.float64)[:, None]
    return Errors(errors, np.ones_like(errors), 1)


@pytest.mark.parametrize(("count", "student"), [(2, 12.706), (4, 4.303), (8, 3.182), (16, 2.365)])
def test_of_errors_that_are_nearly_alike_it_is_students_interval(count: int, student: float) -> None:
    """Of half as many values. Both variances are the same here, and one model has no folds that differ."""
    values = 1e-3 * (1 + 0.01 * np.arange(count))
    deviation = np.std(values, ddof=1) / np.sqrt(count) / np.mean(values) * 10 / np.log(10)
    error, found = figure_of(_errors(values), [0] * count)
    assert found == pytest.approx(student / 2 * np.sqrt(2) * deviation, rel=0.02)
    assert error == pytest.approx(values.mean(), rel=2e-3)


def test_folds_that_differ_more_than_their_samples_count() -> None:
    values = np.repeat(1e-3 * (1 + 0.01 * np.arange(4)), 4)
    folds = np.repeat(range(4), 4).tolist()
    _, alike = figure_of(_errors(values), [place % 4 for place in range(16)])
    _, apart = figure_of(_errors(values), folds)
    deviation = np.std(values[::4], ddof=1) / 2 / np.mean(values) * 10 / np.log(10)
    assert apart == pytest.approx(2.365 / 2 * deviation, rel=0.02) and apart > 1.3 * alike


@pytest.mark.parametrize("spread", [0.3, 1.0, 1.5])
def test_two_of_it_hold_for_other_samples_in_most_cases(spread: float) -> None:
    """Errors of samples that differ by a normal number of nepers: the pooled one of all is known."""
    random, truth = np.random.default_rng(0), np.exp(spread**2 / 2)
    drawn = [np.exp(spread * random.standard_normal(8)) for _ in range(400)]
    folds = [place % 4 for place in range(8)]
    found = [figure_of(_errors(one), folds) for one in drawn]
    off = [10 * np.log10(truth / error) for error, _ in found]
    assert np.mean([abs(one) <= 2 * decibels for one, (_, decibels) in zip(off, found, strict=True)]) >= 0.92
    pooled = np.mean([10 * np.log10(truth / one.mean()) for one in drawn])
    assert abs(np.mean(off)) < 0.7 * pooled + 0.05  # that of the samples alone is better than the truth


def test_one_sample_has_none_and_a_model_without_error_either() -> None:
    assert figure_of(_errors([1e-3]), [0]) == (pytest.approx(1e-3), 0)
    assert figure_of(_errors([0, 0, 0, 0]), range(4)) == (0, 0)


def test_where_a_sample_has_all_of_the_error_nobody_knows_how_many_do() -> None:
    error, decibels = figure_of(_errors([1e-9] * 7 + [1e-3]), [place % 4 for place in range(8)])
    assert decibels > 8 and error < 1e-3 / 8 * np.exp(0.5) * 1.001
