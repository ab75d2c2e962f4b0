"""The error of a printed SQNR. Oracles: Student's interval by hand, and samples that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.judge.errors import Errors
from transforms.judge.figure_error import error_of_figure


def _errors(values: object) -> Errors:
    errors = np.asarray(values, np.float64)[:, None]
    return Errors(errors, np.ones_like(errors), 1)


def test_of_errors_that_are_nearly_alike_it_is_students_interval_of_the_mean() -> None:
    values = 1e-3 * (1 + 0.01 * np.array([1, -1, 2, 0, -2, 1, 0, -1]))
    deviation = np.std(values, ddof=1) / np.sqrt(8) / np.mean(values) * 10 / np.log(10)
    assert error_of_figure(_errors(values), [0] * 8) == pytest.approx(2.365 / 2 * deviation, rel=0.02)


def test_folds_are_the_values_that_are_independent() -> None:
    values = [1e-3, 1e-3, 2e-3, 2e-3, 4e-3, 4e-3, 1e-3, 1e-3]
    alone, together = (
        error_of_figure(_errors(values), folds) for folds in ([0] * 8, [0, 0, 1, 1, 2, 2, 3, 3])
    )
    one_each = error_of_figure(_errors(values[::2]), range(4))
    assert together == pytest.approx(one_each, rel=0.05) and together > 1.5 * alone


@pytest.mark.parametrize("spread", [0.3, 1.0, 1.5])
def test_two_of_it_hold_for_other_samples_in_most_cases(spread: float) -> None:
    """Errors of samples that differ by a normal number of nepers: the pooled one of all is known."""
    random, truth = np.random.default_rng(0), 10 * np.log10(np.exp(spread**2 / 2))
    drawn = [np.exp(spread * random.standard_normal(8)) for _ in range(300)]
    folds = [place % 4 for place in range(8)]
    inside = [
        abs(10 * np.log10(one.mean()) - truth) <= 2 * error_of_figure(_errors(one * 1e-3), folds)
        for one in drawn
    ]
    assert np.mean(inside) >= 0.9


def test_one_sample_has_none_and_a_model_without_error_either() -> None:
    assert error_of_figure(_errors([1e-3]), [0]) == 0
    assert error_of_figure(_errors([0, 0, 0, 0]), range(4)) == 0
