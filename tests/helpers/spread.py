"""Spread a test of many combinations over the default suite and the heavy one."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

import pytest
from _pytest.mark import ParameterSet


def spread(*axes: Collection[object], of: int) -> list[ParameterSet]:
    """Return all combinations of the values of some axes, for ``pytest.mark.parametrize``.

    One in ``of`` is in the default suite, each value of each axis of at least ``of`` values among them; the
    others are heavy, as are those of values that have this mark. A tuple fills several arguments.
    """
    found = []
    for chosen in product(*(enumerate(map(_parameters, axis)) for axis in axes)):
        marks = [mark for _, one in chosen for mark in one.marks]
        if sum(index for index, _ in chosen) % of:
            marks.append(pytest.mark.heavy)
        found.append(pytest.param(*(value for _, one in chosen for value in one.values), marks=marks))
    return found


def _parameters(value: object) -> ParameterSet:
    if isinstance(value, ParameterSet):
        return value
    return pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
