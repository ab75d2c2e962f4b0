"""Which moves outputs confirm, and on how many models. Oracle: sums of squares written out here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ops.array_types import Float64Array
from transforms.pipelines.confirm_moves import Moves, Sample, Trial, is_worth_it
from transforms.scheme.outlier_move import OutlierMove

SAMPLES = [Sample({}, {"number": np.full((1, 1), i, np.float32)}, {}) for i in range(4)]
MOVES = {"x": OutlierMove({0: 1})}


class Known(Trial):
    """A trial whose errors are known, of moves that some halves ask for; it notes what is measured."""

    def __init__(
        self, errors: Sequence[float], moved: Sequence[int] = (), plain: Trial | None = None
    ) -> None:
        def _choose(seen: Sequence[Sample]) -> Moves:
            return MOVES if int(seen[0].rows["number"][0, 0]) in moved else {}

        super().__init__(_choose, lambda *_: pytest.fail("no model is made here"), SAMPLES, None, plain)
        self.errors, self.measured = errors, list[int]()

    def _measured(self, half: int) -> list[Float64Array]:
        self.measured.append(half)
        return [np.array([[1.0], [self.errors[half]]])]


@pytest.mark.parametrize(
    ("new", "worth", "measured"),
    [
        ((1e-3, 1e-3), False, [0, 1]),
        ((8e-4, 8e-4), True, [0, 1]),
        ((5e-4, 9.0), True, [0]),  # 3 dB of one half are clear
        ((2e-3, 0.0), False, [0]),
        ((9e-4, 5e-4), True, [0, 1]),
    ],
)
def test_halves_that_both_ask_for_moves(new: Sequence[float], worth: bool, measured: list[int]) -> None:
    before = Known((1e-3, 1e-3))
    trial = Known(new, (0, 1), before)
    assert is_worth_it(trial, before) == worth
    assert trial.measured == before.measured == measured


@pytest.mark.parametrize(
    ("moved", "new", "old", "worth", "of_new", "of_old"),
    [
        ([0], 9e-4, (1e-3, 1e-3), False, [0], [0]),  # 0.46 dB, and less with the other half
        ([0], 7e-4, (1e-3, 1e-3), True, [0], [0, 1]),  # 1.5 dB, 0.7 over both
        ([0], 8e-4, (1e-3, 5e-3), False, [0], [0, 1]),  # 1 dB, 0.15 over both
        ([0], 5e-4, (1e-3, 5e-3), True, [0], [0]),
        ([1], 9e-4, (1e-3, 1e-3), False, [1], [1]),
        ([1], 5e-4, (1e-3, 1e-3), True, [1], [1, 0]),
        ([1], 1e-9, (1e-1, 1e-3), False, [1], [1, 0]),
    ],
)
def test_a_half_that_asks_for_no_moves_is_not_measured_again(
    moved: list[int], new: float, old: Sequence[float], worth: bool, of_new: list[int], of_old: list[int]
) -> None:
    """Nor is the plain model measured on it where it cannot turn the result."""
    before = Known(old)
    trial = Known((new, new), moved, before)
    assert is_worth_it(trial, before) == worth
    assert (trial.measured, before.measured) == (of_new, of_old)


def test_moves_that_no_half_asks_for_are_not_tried() -> None:
    before = Known((1e-3, 1e-3))
    trial = Known((0.0, 0.0), (), before)
    assert not is_worth_it(trial, before)
    assert not trial.measured and not before.measured
    assert trial.of_half(1) == before.of_half(1)


@pytest.mark.parametrize(
    ("new", "moved", "worth", "measured"),
    [
        ((5e-4, 9.0), (0, 1), True, [0]),
        ((8e-4, 1e-9), (0, 1), False, [0]),  # 1 dB: what the other half shows is not asked for
        ((5e-4, 1e-3), (0,), False, [0]),
        ((1e-3, 5e-4), (1,), False, []),
    ],
)
def test_large_models_are_run_on_one_half(
    new: Sequence[float], moved: Sequence[int], worth: bool, measured: list[int]
) -> None:
    """It has to be clear, and the other half to ask for moves, too."""
    before = Known((1e-3, 1e-3))
    trial = Known(new, moved, before)
    assert is_worth_it(trial, before, briefly=True) == worth
    assert trial.measured == before.measured == measured


def test_what_a_half_asks_for_is_not_asked_once_the_other_is_clear() -> None:
    class _Asked(Known):
        def is_plain(self, half: int) -> bool:
            assert half == 0
            return False

    before = Known((1e-3, 1e-3))
    assert is_worth_it(_Asked((5e-4, 1.0), (0, 1), before), before)
