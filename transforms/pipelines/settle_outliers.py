"""From samples to the outliers of a float model that are moved into its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph.residual_streams import StreamFinder
from transforms.graph.selection import Exclusion, resolve
from transforms.model.copy_graph import copy_graph
from transforms.move_outliers import move_outliers
from transforms.outliers.choose_moves import choose_moves
from transforms.outliers.confirm_moves import Moves, Trial, is_worth_it, is_worth_it_twice
from transforms.outliers.find_operands import find_operands
from transforms.outliers.operand import Operand
from transforms.outliers.outlying_streams import is_read, outlying_streams
from transforms.outliers.sample_rows import Sample, look, pick
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.feeds import Feeds
from transforms.runtime.session import RunOptions
from transforms.scheme.outlier_move import OutlierMove

_FEWEST = 4  # samples: two halves of two

Quantize = Callable[[gs.Graph, list[Feed]], None]
"""Quantizes a prepared graph in place, with ranges from some feeds."""


def settle_outliers(
    plan: QuantizationPlan,
    feeds: Callable[[], Feeds],
    quantize: Quantize,
    run: RunOptions | None,
    *,
    exclude: Exclusion = None,
) -> Moves:
    """Return the moves, by the name of a tensor, with which the outputs of the quantized model are better.

    ``plan`` is that of a prepared graph, which is not changed. Layers propose moves; the whole model decides,
    on samples that gave it neither moves nor ranges: a gain of 0.5 dB in the mean over the outputs, and no
    output worse by more than 0.1 dB. If a half of them shows 2 dB either way, the other is not run. Residual
    streams with outliers are rotated if that gains as much over each half of the samples, against what was
    best before. No moves, without
    looking at data, if no layer of the model can have any; none of fewer than four samples, or of data that
    can be taken only once.
    """
    graph, operands = plan.graph, find_operands(plan, exclude=exclude)
    picked = pick(feeds()) if operands else []
    if len(picked) < _FEWEST:
        return {}
    streams = StreamFinder(graph, resolve(exclude, graph)).streams()
    names = [tensor.name for tensor in (*(one.tensor for one in operands), *(one.first for one in streams))]
    samples = list(look(graph, names, picked, run))
    clips = plan.scheme.calibrate_method != "MinMax"

    def _trial(source: gs.Graph, tried: Sequence[Operand]) -> tuple[Trial, Moves]:
        def _choose(seen: Sequence[Sample]) -> Moves:
            return choose_moves(tried, seen, clips=clips)

        def _quantize(moves: Moves, seen: list[Feed]) -> gs.Graph:
            copy = copy_graph(source)
            move_outliers(copy, moves, exclude=exclude)
            quantize(copy, seen)
            return copy

        return Trial(_choose, _quantize, samples, run), _choose(samples)

    best, chosen = _trial(graph, [])
    scaled = [replace(operand, may_split=False, heads=None) for operand in operands]
    for tried in [operands, scaled] if scaled != operands else [operands]:
        trial, moves = _trial(graph, tried)
        if moves and is_worth_it(trial, best):
            best, chosen = trial, moves
            break
    outlying = outlying_streams(streams, operands, samples)
    if outlying:
        rotations = {stream.name: OutlierMove(rotated=True) for stream in outlying}
        others = [one for one in operands if not any(is_read(stream, one) for stream in outlying)]
        turned = copy_graph(graph)
        move_outliers(turned, rotations, exclude=exclude)
        trial, moves = _trial(turned, others)
        if is_worth_it_twice(trial, best):
            return rotations | dict(moves)
    return chosen
