"""Oracle: the arrays themselves."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from transforms.run import kept_arrays
from transforms.run.kept_arrays import KeptArrays


def test_arrays_beyond_the_limit_are_read_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_arrays, "IN_MEMORY", 100)
    random = np.random.default_rng(0)
    made = {
        "first": random.random((5, 5), np.float32),
        "turned": random.random((6, 5)).T,
        "bits": random.integers(0, 2, (3, 4)).astype(bool),
        "number": np.asarray(random.random()),
        "empty": np.zeros((0, 4), np.float32),
        "bfloat16": random.random((9, 9), np.float32).astype(ml_dtypes.bfloat16),
        "sequence": [np.ones(100)],
        "nothing": None,
    }
    found = KeptArrays().keep(made)
    assert list(found) == list(made)
    in_files = [name for name, value in found.items() if isinstance(value, np.memmap)]
    assert in_files == ["turned", "bits", "number"]
    for name in list(made)[:6]:
        assert found[name].dtype == made[name].dtype
        assert np.array_equal(found[name], made[name])
    assert found["sequence"] is made["sequence"] and found["nothing"] is None
