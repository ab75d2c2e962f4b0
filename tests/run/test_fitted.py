"""Arrays brought into the form of inputs. Oracle: the numbers, which stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transforms.run.fitted import Fitting
from transforms.runtime.inputs import ModelInput

SAME: list[tuple[Any, str, tuple[int | None, ...]]] = [
    (np.array([[1.5, 2.25]]), "float32", (None, 2)),
    (np.array([[3, 255]], np.uint8), "float32", (1, 2)),
    (np.array([[3, -7]], np.int32), "int64", (None, 2)),
    (np.array([[True, False]]), "int64", (None, 2)),
    (np.array([1.5, 2.25], np.float32), "float32", (None, 2)),
    (np.array([3, 255], np.uint8), "float16", (1, 2)),
]


@pytest.mark.parametrize(("array", "dtype", "shape"), SAME)
def test_numbers_keep_their_values(array: Any, dtype: str, shape: tuple[int | None, ...]) -> None:
    wanted, fitting = ModelInput("x", np.dtype(dtype), shape), Fitting()
    (fitted,) = fitting.of({"x": array}, [wanted]).values()
    assert fitted.dtype == dtype and fitted.shape == (1, 2)
    assert np.array_equal(fitted.reshape(-1), array.reshape(-1))
    assert len(list(fitting.lines())) == 1


LOST: list[tuple[Any, str, tuple[int | None, ...]]] = [
    (np.array([[1.5, 2.0]]), "int64", (None, 2)),  # a part would be lost
    (np.array([[1e300, 2.0]]), "float32", (None, 2)),  # infinite there
    (np.array([[2**40, 1]]), "int32", (None, 2)),
    (np.array([[-1, 1]]), "uint8", (None, 2)),
    (np.array([[2**25 + 1, 1]]), "float32", (None, 2)),  # 25 bits
    (np.array([["a", "b"]]), "float32", (None, 2)),
    (np.array([1.0, 2.0], np.float32), "float32", (2, 2)),  # a batch of two
    (np.array([[1.0, 2.0]], np.float32), "float32", (None, 2)),  # fits
]


@pytest.mark.parametrize(("array", "dtype", "shape"), LOST)
def test_what_would_change_a_number_stays(array: Any, dtype: str, shape: tuple[int | None, ...]) -> None:
    fitting = Fitting()
    (fitted,) = fitting.of({"x": array}, [ModelInput("x", np.dtype(dtype), shape)]).values()
    assert fitted is array and not list(fitting.lines())


def test_other_names_stay_for_the_check_of_feeds() -> None:
    array = np.zeros(2)
    assert Fitting().of({"y": array}, [ModelInput("x", np.dtype("float32"), (2,))])["y"] is array
