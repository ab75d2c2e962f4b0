"""Scaled channels between convolutions, which the outputs decide about among the settings."""

from __future__ import annotations

from functools import partial

import onnx_graphsurgeon as gs

from transforms.channels.propose_scales import find_spans, levels_of, propose_scales, sizes_of
from transforms.channels.scale_channels import scale_channels, show_scaled
from transforms.choose_ranges.candidate import Candidate
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.proposed_form import Propose
from transforms.pipelines.quantize_steps import SCALED
from transforms.plan.scheme_targets import SchemeTargets
from transforms.scheme import Scheme

_SAMPLES = 4  # that are looked at: more change little and cost time
_EXPECTED, _SPREAD = 1.5, 2.0
"""dB that scaled channels bring other models, and how much that differs."""


def proposer(graph: gs.Graph, scheme: Scheme, targets: SchemeTargets) -> Propose | None:
    """Return what scales channels between convolutions, None if the scheme moves none, or names them."""
    levels = levels_of(scheme)
    if not scheme.move_outliers or scheme.outliers or levels is None:
        return None

    def _propose(floats: FloatRuns) -> Candidate | None:
        gates, excluded = not scheme.target, targets.excluded
        spans = find_spans(graph, exclude=excluded, gates=gates)
        sizes = sizes_of(spans)
        if sizes:
            floats.watch(list(sizes), lambda name, array: sizes[name].add(array), _SAMPLES)
        moves = propose_scales(spans, sizes, levels=levels)
        changes = {"outliers": {name: str(move) for name, move in moves.items()}}
        rewrite, show = (
            partial(function, moves=moves, exclude=excluded) for function in (scale_channels, show_scaled)
        )
        return Candidate(SCALED, changes, rewrite, _EXPECTED, _SPREAD, show) if moves else None

    return _propose
