"""Oracle: the rows of all samples one after another, and the sums over them in one piece."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.finetune import gram
from transforms.finetune.gram import GramStats, RowBlock

G, K, N = 2, 3, 4
RANDOM = np.random.default_rng(0)
SAMPLES = [
    (RANDOM.standard_normal((G, rows, K)), RANDOM.standard_normal((G, rows, N))) for rows in (5, 1, 0, 7, 2)
]


@pytest.mark.parametrize("limit", [0, 60, 1000])
def test_rows_come_in_order_whatever_the_limit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(gram, "LIMIT", limit)
    passed: list[tuple[np.ndarray, np.ndarray]] = []
    block = RowBlock()
    for inputs, outputs in SAMPLES:
        if block.add(inputs, outputs):
            passed += block.take()
    passed += [*block.take(), *block.take()]  # nothing waits the second time
    for part in range(2):
        found = np.concatenate([rows[part] for rows in passed], 1)
        np.testing.assert_array_equal(found, np.concatenate([sample[part] for sample in SAMPLES], 1))
    # K = 3 rows are enough without a limit, 60 numbers are 5 rows of G * (K + N): one more sample fills it
    assert [rows[0].shape[1] for rows in passed] == {0: [5, 8, 2], 60: [5, 8, 2], 1000: [15]}[limit]


@pytest.mark.parametrize("order", ["C", "F"])
def test_sums_do_not_depend_on_how_rows_lie_in_memory(order: str) -> None:
    inputs, outputs = (np.concatenate([sample[i] for sample in SAMPLES], 1) for i in range(2))
    sums, other = GramStats.zeros(G, N, K), GramStats.zeros(G, N, K)
    sums.add(inputs, outputs)
    other.add(np.array(inputs, order=order), np.array(outputs, order="F"))
    # 15 products of numbers near 1 in float64: some 1e-15 apart
    np.testing.assert_allclose(other.xx, inputs.transpose(0, 2, 1) @ inputs, atol=1e-13)
    np.testing.assert_allclose(other.yx, outputs.transpose(0, 2, 1) @ inputs, atol=1e-13)
    np.testing.assert_allclose(other.yy, sums.yy, atol=1e-13)
