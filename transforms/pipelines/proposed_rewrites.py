"""Rewrites of a float graph that its outputs decide about, for settings that they choose."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_graphsurgeon as gs

from transforms.choose_ranges.candidate import Candidate
from transforms.choose_ranges.channel_moves import channel_moves
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.proposed_form import Propose
from transforms.equalize_layers import equalize_layers
from transforms.pipelines.quantize_steps import EQUALIZED, SCALED
from transforms.plan.scheme_targets import SchemeTargets
from transforms.scale_channels import scale_channels, show_scaled
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO

_EXPECTED, _SPREAD = 1.5, 2.0
"""dB that scaled channels bring other models, and how much that differs."""


def candidates_of(scheme: Scheme, targets: SchemeTargets) -> Iterator[Candidate]:
    """Yield rewrites of the float graph that its outputs decide about.

    A recorded scheme equalizes layers before it moves outliers: not after that here.
    """
    if scheme.equalize_layers == AUTO and not scheme.outliers:
        rewrite = partial(equalize_layers, exclude=targets.excluded)
        yield Candidate(EQUALIZED, {"equalize_layers": True}, rewrite)


def proposer(graph: gs.Graph, scheme: Scheme, targets: SchemeTargets) -> Propose | None:
    """Return what scales channels between convolutions, None if the scheme moves none, or names them."""
    formats = scheme.format(scheme.activation), scheme.format(scheme.weight)
    if not scheme.move_outliers or scheme.outliers or not all(one and one.is_integer for one in formats):
        return None
    activation, weight = (float(2 ** (one.bits - 1) - 1) for one in formats if one)
    signed = formats[0] is not None and scheme.is_symmetric(formats[0])
    levels = activation if signed else 2 * activation + 1, weight

    def _propose(floats: FloatRuns) -> Candidate | None:
        gates, excluded = not scheme.target, targets.excluded
        moves = channel_moves(graph, floats, levels=levels, exclude=excluded, gates=gates)
        changes = {"outliers": {name: str(move) for name, move in moves.items()}}
        rewrite, show = (
            partial(function, moves=moves, exclude=excluded) for function in (scale_channels, show_scaled)
        )
        return Candidate(SCALED, changes, rewrite, _EXPECTED, _SPREAD, show) if moves else None

    return _propose
