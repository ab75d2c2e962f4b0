"""A move: tensors of int8 use the full range, shifted so that zero is at the lowest level.

It is decided last, on the written model: with and without shifts it has the same ranges otherwise, so that
samples may judge that have given them.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.full_range.apply_full_range import shift_all, wants_full_range
from transforms.full_range.recorded_shifts import shifts_within
from transforms.graph.some_names import counted
from transforms.judge.decisions import Decisions, Tried
from transforms.judge.errors import gain
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.scheme import Scheme
from transforms.scheme.scheme_values import OFF


def try_full_range(
    graph: gs.Graph, scheme: Scheme, statistics: Calibration, judge: Judge, decisions: Decisions
) -> Scheme:
    """Return the scheme with the tensors of a written graph that are shifted, if the judge accepts it."""
    if not wants_full_range(scheme):
        return scheme.with_(full_range=OFF)
    shifted = copy_graph(graph)
    names = shift_all(shifted, scheme, statistics)
    if not names:
        return scheme.with_(full_range=OFF)
    before = judge.errors_of(copy_graph(graph))
    won = gain(judge.errors_of(shifted, shifts=shifts_within(shifted)), before)
    words, kept = f"the full range of int8 for {counted(len(names), 'tensor')}", won.is_accepted()
    decisions.tried.append(Tried("full range", words, won, kept, judge.count))
    return scheme.with_(full_range=names if kept else OFF)
