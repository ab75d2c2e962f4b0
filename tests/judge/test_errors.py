"""Gains and their uncertainty. Oracles: sums by hand, and the distribution of repeated draws."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.judge.errors import Errors, energies, gain


def _errors(energies_of_samples: list[list[float]], count: int | None = None) -> Errors:
    errors = np.array(energies_of_samples)
    return Errors(errors, np.full_like(errors, 100.0), errors.shape[1] if count is None else count)


def test_the_gain_is_that_of_pooled_errors_in_the_mean_over_outputs() -> None:
    old, new = _errors([[1.0, 4.0], [3.0, 4.0]]), _errors([[1.0, 2.0], [1.0, 2.0]])
    found = gain(new, old)
    expected = (10 * np.log10(4 / 2) + 10 * np.log10(8 / 4)) / 2
    assert found.decibels == pytest.approx(expected)
    assert found.worst == pytest.approx(10 * np.log10(8 / 4))
    assert new.mean == pytest.approx((10 * np.log10(200 / 2) + 10 * np.log10(200 / 4)) / 2)


def test_the_standard_error_is_the_scatter_of_draws() -> None:
    """Of 300 draws of 16 samples each, the jackknife tells the standard deviation within a fifth."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(300):
        old, new = (scale * random.chisquare(8, (16, 1)) for scale in (1.0, 0.5))
        found.append(gain(_errors(new.tolist()), _errors(old.tolist())))
    scatter = np.std([one.decibels for one in found])
    assert np.mean([one.error for one in found]) == pytest.approx(scatter, rel=0.2)


def test_one_sample_decides_nothing() -> None:
    assert not gain(_errors([[0.001]]), _errors([[1.0]])).is_accepted()


def test_a_gain_below_its_standard_error_is_not_accepted() -> None:
    old = _errors([[1.0], [1.0], [1.0], [1.0]])
    assert gain(_errors([[0.5], [0.5], [0.6], [0.5]]), old).is_accepted()
    assert not gain(_errors([[0.2], [2.0], [0.3], [1.4]]), old).is_accepted()
    assert not gain(_errors([[0.5], [0.5], [0.6], [0.5]]), old).is_accepted(4.0)


def test_an_output_that_regresses_is_a_veto() -> None:
    old = _errors([[1.0, 1.0]] * 4)
    assert gain(_errors([[0.1, 1.05]] * 4), old).is_accepted()
    assert not gain(_errors([[0.1, 1.3]] * 4), old).is_accepted()


def test_views_may_show_a_gain_and_a_loss() -> None:
    """Probabilities of which one sample holds the error, and the numbers before the Softmax."""
    old = _errors([[1.0, 1.0], [0.01, 1.0], [0.01, 1.0], [0.01, 1.0]], 1)
    better = _errors([[0.8, 0.5], [0.012, 0.5], [0.011, 0.5], [0.012, 0.5]], 1)
    assert gain(better, old).is_accepted()
    worse = _errors([[0.8, 2.0], [0.008, 2.0], [0.008, 2.0], [0.008, 2.0]], 1)
    assert not gain(worse, old).is_accepted()


def test_errors_that_are_no_numbers_and_other_shapes_are_as_bad_as_can_be() -> None:
    expected = {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32), "c": np.ones(3, np.float32)}
    made = {"a": np.float32([1, np.nan, 1]), "b": np.ones(4, np.float32)}
    first, second, third = energies(expected, made)
    assert first == second == 1e30 and third == 0


def test_views_decide_where_a_loss_of_outputs_is_chance() -> None:
    """One sample of four holds the error of the probabilities; the numbers before halve theirs on each."""
    old = _errors([[1.0, 1.0], [0.01, 1.0], [0.01, 1.0], [0.01, 1.0]], 1)
    new = _errors([[1.6, 0.5], [0.002, 0.5], [0.003, 0.5], [0.002, 0.5]], 1)
    found = gain(new, old)
    assert -found.error < found.decibels < 0 < found.view - found.view_error
    assert found.is_accepted()


def test_the_error_of_a_ratio_is_that_of_the_jackknife() -> None:
    """Three samples by hand: without each, the errors that are left add up to 5, 4 and 3 of 200."""
    found = _errors([[1.0], [2.0], [3.0]])
    left = [10 * np.log10(200 / rest) for rest in (5, 4, 3)]
    mean = sum(left) / 3
    expected = np.sqrt(2 / 3 * sum((one - mean) ** 2 for one in left))
    assert found.decibels_error == pytest.approx(expected)
    assert _errors([[1.0]]).decibels_error == 0
    assert _errors([[0.0], [0.0]]).decibels_error == 0


def test_a_sample_that_holds_all_of_the_error_counts_as_nine_tenths() -> None:
    """Without it, the ratio is 10 dB more; without each of three others, 10 log10(4 / 3) dB less."""
    found = _errors([[1.0], [0.0], [0.0], [0.0]])
    less = 10 * np.log10(4 / 3)
    assert found.decibels_error == pytest.approx(np.sqrt(3 * np.var([10, -less, -less, -less])))
