"""Tensors on the full range of int8 beside those of the float model. Oracle: a model without shifts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.full_range.test_shift_tensors import MAKERS, PADDED, PADDED_DATA
from tests.helpers import tunable
from transforms.compare.match_tensors import Match, match_tensors
from transforms.compare.tensor_statistics import LayerStatistics, SideBySide
from transforms.full_range.shift_tensors import shift_tensors
from transforms.model.copy_graph import copy_graph
from transforms.model.graph_proto import import_model


def _compared(*, shifted: bool, per_channel: bool) -> tuple[dict[str, LayerStatistics], list[str]]:
    _, quantized = tunable.pair(PADDED, "A8W8", PADDED_DATA, per_channel=per_channel)
    if shifted:
        assert len(shift_tensors(quantized, {"x", *MAKERS}, padded=True)) == 4
    float_graph = import_model(PADDED)
    matches, missing = match_tensors(float_graph, copy_graph(quantized))
    both = SideBySide(float_graph, quantized, matches)
    found = both.collect(matches, [("", feed) for feed in PADDED_DATA])
    return {one.match.name: one for one in found}, missing


@pytest.mark.parametrize("per_channel", [False, True])
def test_shifted_tensors_are_compared_without_the_shift(per_channel: bool) -> None:
    plain, _ = _compared(shifted=False, per_channel=per_channel)
    found, missing = _compared(shifted=True, per_channel=per_channel)
    assert not missing and plain.keys() - found.keys() == {"b1", "b2", "b3", "b4"}  # they hold the shifts
    for name in ("x", "c1", "r1", "c2", "r2", "p", "c3", "r3", "f"):
        assert found[name].match.shift > 0, name
        layer = name.startswith("c")  # c2: a Clip after it counts as part of the rounding, if it is there
        assert found[name].match.format == ("float32" if layer else "int8"), name
        # Steps are half as large: 6 dB if nothing was rounded before, and never clearly worse.
        assert found[name].total.sqnr() > plain[name].total.sqnr() - 0.5, name
    assert found["x"].total.sqnr() > plain["x"].total.sqnr() + 5
    assert all(found[name].match.shift == 0 for name in found if "w" in name or "b" in name)


def test_a_record_without_its_sub_is_not_believed() -> None:
    float_graph, quantized = tunable.pair(PADDED, "A8W8", PADDED_DATA)
    shift_tensors(quantized, {"x", *MAKERS}, padded=True)
    other = copy_graph(tunable.pair(PADDED, "A8W8", PADDED_DATA)[1])
    other.info = quantized.info  # type: ignore[attr-defined]
    found: dict[str, Match] = {one.name: one for one in match_tensors(float_graph, other)[0]}
    assert found["x"].shift == 0 and np.isfinite(found["c1"].shift)
