"""How far apart values are, where some of their numbers stand for nothing, or for infinity."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.attack.graphs.scope import HUGE


def distance(a: Any, b: Any) -> float:
    """Return how far a value is from one that is right, infinity if they have not one shape.

    Infinity, too, for NaN in place of a number. Where the right number is huge any other one goes: integers
    and blocks of numbers cannot hold it beside ordinary ones. Where it is NaN anything goes.
    """
    if isinstance(b, list):
        return max(map(distance, a, b), default=0.0) if len(a) == len(b) else np.inf
    if a.shape != b.shape:
        return np.inf
    if b.dtype.kind not in "fiu" or not b.size:
        return 0.0 if np.array_equal(a, b) else np.inf
    if b.dtype.kind == "f" and (np.isnan(a) & ~np.isnan(b)).any():
        return np.inf
    told = _told(b)
    gap = np.abs(a[told].astype(np.float64) - b[told].astype(np.float64))
    return float(gap.max(initial=0.0))


def largest(value: Any) -> float:
    """Return the largest ordinary number of a value."""
    if isinstance(value, list):
        return max(map(largest, value), default=0.0)
    if value.dtype.kind not in "fiu":
        return 0.0
    return float(np.abs(value[_told(value)].astype(np.float64)).max(initial=0.0))


def _told(array: np.ndarray) -> np.ndarray:
    return np.abs(array) <= HUGE if array.dtype.kind == "f" else np.ones(array.shape, bool)


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str | None:
    """Return the first output that is not the same bit for bit, None if all are.

    NaN equals NaN; of a huge number it counts that it is one, and its sign: some formats hold no larger one.
    """
    if list(found) != list(expected):
        return f"outputs {list(found)} instead of {list(expected)}"
    for name, value in expected.items():
        pairs = [(found[name], value)]
        if isinstance(value, list):
            if len(found[name]) != len(value):
                return f"'{name}' has {len(found[name])} tensors instead of {len(value)}"
            pairs = list(zip(found[name], value, strict=True))
        for a, b in pairs:
            if a.dtype != b.dtype or a.shape != b.shape:
                return f"'{name}' is {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
            if not np.array_equal(_bounded(a), _bounded(b), equal_nan=a.dtype.kind == "f"):
                return f"'{name}' differs: {_example(a, b)}"
    return None


def _bounded(array: np.ndarray) -> np.ndarray:
    """Return infinities in place of huge numbers."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.abs(array) > HUGE, np.copysign(np.inf, array), array)


def _example(a: np.ndarray, b: np.ndarray) -> str:
    at = np.flatnonzero((a != b).reshape(-1))
    first = int(at[0]) if len(at) else 0
    return (
        f"{len(at)} of {a.size} numbers, the first {a.reshape(-1)[first]} instead of {b.reshape(-1)[first]}"
    )


def made_nan(found: Any, expected: Any) -> bool:
    """Return whether there is NaN where a value has numbers; of two shapes, where it has numbers alone."""
    if isinstance(found, list):
        if len(found) != len(expected):
            return False
        return any(made_nan(a, b) for a, b in zip(found, expected, strict=True))
    if found.dtype.kind != "f":
        return False
    mine, right = np.isnan(found), np.isnan(expected)
    return bool((mine & ~right).any() if mine.shape == right.shape else mine.any() and not right.any())
