"""Oracle: the rule itself, on errors that are written down or drawn from known distributions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from transforms.finetune.acceptance import (
    OPEN,
    clear_of,
    gain,
    gains_of_outputs,
    harmed,
    is_significantly_better,
    is_sure,
    loses,
)
from transforms.finetune.output_error import Errors

HELD = [i % 5 == 4 for i in range(60)]
random = np.random.default_rng(0)


def errors(*outputs: object) -> Errors:
    """Return the errors of outputs, each an array of a number for every sample."""
    columns = [np.broadcast_to(np.asarray(output, np.float64), len(HELD)) for output in outputs]
    return Errors(np.stack(columns, 1), np.ones((len(HELD), len(columns))))


def test_less_on_every_sample_is_better() -> None:
    assert is_significantly_better(errors(1.0), errors(0.99), HELD)
    assert not is_significantly_better(errors(1.0), errors(1.0), HELD)
    assert not is_significantly_better(errors(1.0), errors(1.01), HELD)


def test_one_output_that_became_worse_is_enough() -> None:
    """The mean of the two relative errors falls to about half."""
    before, after = errors(1.0, 1.0), errors(0.01, 1.01)
    assert after.relative < 0.52 * before.relative
    assert not is_significantly_better(before, after, HELD)


def test_outputs_are_sure_of_their_gain_together() -> None:
    """One output halves its error; the other wins or loses less than the standard error of its mean."""
    places = np.arange(len(HELD))
    loose = np.where(places // 5 % 2, 1.45, 0.52)
    assert np.mean(loose) < 1 and np.mean(loose[HELD]) < 1
    assert not is_significantly_better(errors(1.0), errors(loose), HELD)
    assert is_significantly_better(errors(1.0, 1.0), errors(0.5, loose), HELD)
    assert is_significantly_better(errors(1.0, 1.0), errors(0.5, 1.02 * loose), HELD)
    assert is_significantly_better(errors(1.0, 1.0), errors(0.5, 1.0), HELD)  # nothing about it changed


def test_a_loss_beyond_scatter_is_one() -> None:
    places = np.arange(len(HELD))
    loose = np.where(places // 5 % 2, 1.75, 0.62)
    assert not is_significantly_better(errors(1.0, 1.0), errors(0.5, 1.3 * loose), HELD)
    assert list(harmed(errors(1.0, 1.0, 1.0), errors(1.01, 0.5, 1.3 * loose), np.asarray(HELD))) == [2, 0]


def test_many_noisy_outputs_do_not_hide_a_gain_of_all() -> None:
    """Twelve outputs, each of which wins a quarter in scatter: each alone may look worse."""
    passed, looked_worse = 0, 0
    for _ in range(100):
        easy = [np.exp(random.standard_normal(len(HELD))) for _ in range(12)]
        after = [0.75 * one * np.exp(0.5 * random.standard_normal(len(HELD))) for one in easy]
        looked_worse += any(b[HELD].sum() > a[HELD].sum() for a, b in zip(easy, after, strict=True))
        passed += is_significantly_better(errors(*easy), errors(*after), HELD)
    assert passed > 80 and looked_worse > 50


def test_a_loss_on_samples_that_were_fitted_to_counts() -> None:
    held = np.asarray(HELD)
    assert not is_significantly_better(errors(1.0), errors(np.where(held, 0.9, 1.1)), HELD)
    assert not is_significantly_better(errors(1.0), errors(np.where(held, 1.1, 0.1)), HELD)


def test_what_one_sample_wins_is_no_evidence() -> None:
    """The total falls by a tenth, for a sample whose error is ten times that of the others."""
    before, after = np.ones(len(HELD)), np.where(np.arange(len(HELD)) % 2, 1.2, 1 / 1.2)
    place = HELD.index(True)
    before[place], after[place] = 10, 1
    after[~np.asarray(HELD)] = 0.9
    assert after[HELD].sum() < 0.9 * before[HELD].sum()
    assert not is_significantly_better(errors(before), errors(after), HELD)


@pytest.mark.parametrize(("tried", "share"), [(0, 0.05), (1, 0.025), (2, 0.0167)])
def test_luck_passes_as_rarely_as_it_is_said(tried: int, share: float) -> None:
    """Both models err alike: luck passes 1.645 standard errors with probability 0.05, which models share.

    The other conditions leave out some more. Of 2000 draws the share scatters by 0.005 at most: four times
    that is the tolerance above.
    """
    passed = 0
    for _ in range(2000):
        noise = np.exp(random.standard_normal((2, len(HELD))))
        passed += is_significantly_better(errors(noise[0]), errors(noise[1]), HELD, tried, OPEN)
    assert 0.2 * share < passed / 2000 < share + 0.02


@pytest.mark.parametrize(("count", "clear"), [(4, False), (20, True)])
def test_a_clear_gain_is_of_two_standard_errors(count: int, clear: bool) -> None:
    """Gains of 0.25 that scatter by 0.25: those of four samples are 1.7 standard errors, of twenty 4.4."""
    gains = 0.25 + 0.25 * np.where(np.arange(len(HELD)) % 2, 1, -1)
    held, found = np.arange(len(HELD)) < count, errors((1 - gains) / (1 + gains))
    assert is_sure(errors(1.0), found, held, 0, OPEN)
    assert is_sure(errors(1.0), found, held, 0, clear_of(held)) == clear


@pytest.mark.parametrize("counts", [(6, 12, 18), (1, 2, 4, 6, 8)])
def test_looks_at_first_samples_add_little_luck(counts: tuple[int, ...]) -> None:
    """Some samples of models that err alike have to be clear, then all together tell.

    These pass in 5 of 100, a look at two standard errors in 2.3: of two looks at most 9.6 do, and of 1000
    draws the share scatters by 0.008.
    """
    passed = 0
    for _ in range(1000):
        noise = np.exp(random.standard_normal((2, len(HELD))))
        parts = [np.arange(len(HELD)) < count for count in counts]
        least = [*map(clear_of, parts[:-1]), OPEN]
        pair = errors(noise[0]), errors(noise[1])
        passed += any(is_sure(*pair, part, 0, one) for part, one in zip(parts, least, strict=True))
    assert 0.025 < passed / 1000 < 0.12


def test_a_gain_is_found_in_scatter() -> None:
    """Half the error, against a scatter of a factor of 1.5: twelve samples show it nearly always."""
    passed = 0
    for _ in range(200):
        easy = np.exp(2 * random.standard_normal(len(HELD)))
        after = easy * 0.5 * np.exp(0.4 * random.standard_normal(len(HELD)))
        passed += is_significantly_better(errors(easy), errors(after), HELD)
    assert passed > 190


def test_a_single_sample_that_is_held_out_is_judged_by_the_scatter_of_the_others() -> None:
    held = [True, False, False, False, False]
    before = Errors(np.ones((5, 1)), np.ones((5, 1)))
    steady, loose = ([[0.8], [0.7], [0.7], [0.75], [0.75]], [[0.8], [2.0], [0.1], [0.1], [0.2]])
    assert is_significantly_better(before, Errors(np.array(steady), before.powers), held)
    assert not is_significantly_better(before, Errors(np.array(loose), before.powers), held)


def test_of_few_held_out_samples_an_output_that_became_worse_at_all_is_harmed() -> None:
    held = np.array([True, True, True, False, False])
    before = Errors(np.ones((5, 2)), np.ones((5, 2)))
    after = Errors(np.array([[0.5, 1.9], [0.6, 0.6], [0.5, 0.6], [0.5, 0.5], [0.5, 0.5]]), before.powers)
    assert list(harmed(before, after, held)) == [1]
    assert not is_significantly_better(before, after, held)


def test_three_held_out_samples_are_sure_of_a_gain_together() -> None:
    """The second output wins, but scatters by more; one sample alone has to be sure of each output."""
    several, single = (np.arange(5) < count for count in (3, 1))
    before = Errors(np.ones((5, 2)), np.ones((5, 2)))
    after = Errors(np.array([[0.5, 0.9], [0.6, 1.7], [0.5, 0.2], [0.5, 0.5], [0.5, 0.5]]), before.powers)
    assert is_significantly_better(before, after, several)
    assert not is_significantly_better(before, after, single)


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_what_is_no_number_is_the_worst(wrong: float) -> None:
    bad = np.where(np.arange(len(HELD)) == 7, wrong, 1.0)
    assert is_significantly_better(errors(bad), errors(1.0), HELD)
    assert not is_significantly_better(errors(1.0), errors(bad), HELD)
    assert not is_significantly_better(errors(bad), errors(bad), HELD)


def test_a_loss_that_one_sample_makes_is_a_matter_of_chance() -> None:
    """Half of the samples win 10 dB, half lose as much; one with most of the errors loses 1 dB."""
    random = np.random.default_rng(1)
    changes = np.where(np.arange(len(HELD)) % 2, 10.0, 0.1)
    size = np.ones(len(HELD))
    size[7], changes[7] = 1e4, 10**0.1
    every = np.ones(len(HELD), bool)
    assert not loses(errors(size), errors(size * changes), every)
    assert loses(errors(1.0), errors(10 ** (0.1 + 0.01 * random.standard_normal(len(HELD)))), every)
    assert not loses(errors(1.0), errors(1.0), every)


def test_infinite_errors_are_gains_and_losses_without_a_warning() -> None:
    """As of outputs that have another shape: no number of them is told by NumPy."""
    finite, infinite = (Errors(np.full((4, 1), value), np.ones((4, 1))) for value in (1.0, np.inf))
    held = np.array([True, True, False, False])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(harmed(finite, infinite, held)) == [0]
        assert gains_of_outputs(infinite, finite)[0] == np.inf and gain(finite, infinite, held) == -np.inf
        assert gain(infinite, infinite, held) == 0 and not is_significantly_better(infinite, infinite, held)
        assert loses(finite, infinite, held) and not loses(infinite, finite, held)
