"""What orders of sums may change of an output. Oracle: errors of known spread."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.runtime import output_errors

RANDOM = np.random.default_rng(0)
WANTED = RANDOM.standard_normal(1000)


def test_errors_scatter_like_as_many_equal_ones() -> None:
    assert output_errors._count(WANTED, WANTED + 0.1) == pytest.approx(1000)
    assert output_errors._count(WANTED, WANTED + RANDOM.standard_normal(1000)) == pytest.approx(
        333, rel=0.2
    )  # n / 3
    few = WANTED.copy()
    few[:2] += 0.1
    assert output_errors._count(WANTED, few) == pytest.approx(2)
    assert output_errors._count(WANTED, WANTED) == output_errors._count(WANTED, WANTED[:10]) == 1000
    few[0] = np.nan
    assert output_errors._count(WANTED, few) == pytest.approx(1)


@pytest.mark.parametrize(("count", "factor", "is_wrong"), [(1000, 4, True), (3, 4, False), (3, 200, True)])
def test_what_a_few_numbers_carry_may_change_more_by_chance(count: int, factor: int, is_wrong: bool) -> None:
    """A factor of 4 is nothing in the probabilities of a classifier, of which three make up the error."""
    wanted = np.zeros(1000)
    wanted[:count] = 1.0
    plain, made = (wanted + 0.03 * np.sqrt(times) * wanted for times in (1, factor))
    assert output_errors.OutputErrors.of(wanted, made, plain).is_made_wrong is is_wrong


@pytest.mark.parametrize(("count", "is_wrong"), [(2, False), (500, True)])
def test_either_error_may_be_that_of_a_few_numbers(count: int, is_wrong: bool) -> None:
    """One decision that rounds the other way is all of the error of a session: 26 times the other's."""
    wanted = np.ones(1000)
    made, plain = wanted.copy(), wanted.copy()
    made[:8] += 0.05
    plain[-count:] += 0.05 * np.sqrt(26 * 8 / count)
    assert output_errors.OutputErrors.of(wanted, made, plain).is_plain_wrong is is_wrong


def test_rounded_inputs_of_one_session_are_explained_and_zeros_are_not() -> None:
    """Blocks of 32 normal numbers, rounded to int8 by their largest, are what kernels of level 4 multiply."""
    blocks = RANDOM.standard_normal((1000, 32))
    scales = np.abs(blocks).max(-1, keepdims=True) / 127
    rounded = np.rint(blocks / scales) * scales
    noticed = output_errors.NOTICED + output_errors.ROUNDED_INPUTS
    assert output_errors.NOTICED < output_errors.relative_error(blocks, rounded) < noticed
    explained = output_errors.OutputErrors.of(blocks, rounded, blocks, noticed)
    assert not explained.is_wrong and output_errors.OutputErrors.of(blocks, rounded, blocks).is_wrong
    assert output_errors.OutputErrors.of(blocks, blocks, np.zeros_like(blocks), noticed).is_plain_wrong
