"""The error of a printed SQNR. Oracles: Student's interval by hand, and samples that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.judge.errors import Errors
from transforms.judge.figure_error import figure_of


def _errors(values: object) -> Errors:
    errors = np.asarray(values, np.float64)[:, None]
    return Errors(errors, np.ones_like(errors), 1)


def test_of_errors_that_are_nearly_alike_it_is_students_interval_of_the_mean() -> None:
    """Of a model without folds, over which nothing varies."""
    values = 1e-3 * (1 + 0.01 * np.array([1, -1, 2, 0, -2, 1, 0, -1]))
    deviation = np.std(values, ddof=1) / np.sqrt(8) / np.mean(values) * 10 / np.log(10)
    error, found = figure_of(_errors(values), [0] * 8)
    assert found == pytest.approx(2.365 / 2 * deviation, rel=0.02)
    assert error == pytest.approx(values.mean(), rel=1e-4)


def test_folds_are_the_values_that_are_independent() -> None:
    """Their variance and that of the samples are the same here: both add."""
    values = 1e-3 * (1 + 0.01 * np.array([1, -1, 2, 0]))
    _, alone = figure_of(_errors(values), [0] * 4)
    _, each = figure_of(_errors(values), range(4))
    _, twice = figure_of(_errors(np.repeat(values, 2)), np.repeat(range(4), 2).tolist())
    assert each == pytest.approx(np.sqrt(2) * alone, rel=0.02)
    assert each / np.sqrt(2) < twice < each  # samples have less, and folds as much


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
