"""How many runs choices may take. Oracle: the moves that are noted as left."""

from __future__ import annotations

import pytest

import onnx_narrow
from tests.helpers.judged_networks import network, samples
from transforms.judge import constants

EFFORTS = ("low", "normal", "high")
PAID = 3.2e6
"""So much that the most effort alone tries everything."""


def left(effort: str) -> int:
    """Return how many moves no runs were left for."""
    result = onnx_narrow.quantize(
        network(1, 1.0, 1.0), config="A8W8", data=samples(8, 1), effort=effort, time=False
    )
    found = [note for note in result.notes if note.startswith("No runs left for: ")]
    assert all(("effort='high' has more" in note) == (effort != "high") for note in found)
    return sum(note.partition(";")[0].count(",") + 1 for note in found)


def test_more_effort_leaves_fewer_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside samples that pay for nothing, so that the effort alone does."""
    monkeypatch.setattr(constants, "FLOAT_RUNS", 0)
    monkeypatch.setattr(constants, "PAID", PAID)
    low, normal, high = map(left, EFFORTS)
    assert low > normal >= high == 0
