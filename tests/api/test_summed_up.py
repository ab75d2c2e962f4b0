"""Summaries of at most 11 lines, and one that counts the others. Oracle: lines that are no details."""

from __future__ import annotations

import pytest

from onnx_narrow.summaries.words import Detail, summed_up

WANTED = ["Outputs: SQNR", "Size: 1", "Runs on CPU"]


@pytest.mark.parametrize("notes", [0, 3, 7, 10, 40])
@pytest.mark.parametrize("told", [0, 2])
def test_what_everybody_looks_for_stays(notes: int, told: int) -> None:
    lines = [*(f"note {i}" for i in range(notes)), Detail("more"), *WANTED, "last"]
    found = list(summed_up(lines, ["told"] * told))
    assert found == lines
    shown = [line for line in found if not isinstance(line, Detail)]
    assert len(shown) + told == min(notes + 4 + told, 11) and {*WANTED} <= {*shown}
    assert shown[-1] == "last" and shown[:3] == lines[:3] if 3 <= notes <= 7 else True
