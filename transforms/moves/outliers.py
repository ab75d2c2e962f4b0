"""Moves of channels: outliers into weights, and channels between convolutions to similar ranges.

Layers propose, by their own errors on rows of samples; the judge decides by the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ops.array_types import Feed, Float32Array
from transforms.graph.selection import Exclusion
from transforms.moves.form import Measure, Rewrite
from transforms.moves.improve import Best
from transforms.outliers.channel_moves import channel_moves
from transforms.outliers.choose_moves import choose_moves
from transforms.outliers.find_operands import find_operands
from transforms.outliers.sample_rows import ROWS, Sample, some_rows
from transforms.scheme import Scheme

_SAMPLES = 16
"""Samples whose rows layers look at: more change little and cost time."""

_FEWEST = 4
_FLOAT_RUNS = 2  # twice, in the time of four

_COST = 0.5
"""dB that nodes and products of their own have to bring."""


def try_outliers(best: Best, exclude: Exclusion, rewrite: Rewrite, measure: Measure) -> None:
    """Move outliers of what layers multiply if the outputs are better for it."""
    if len(best.form.judge.reference.feeds) < _FEWEST:
        return
    plan = best.form.plan_of(best.form.graph, best.scheme)
    operands = find_operands(plan, exclude=exclude)
    if not operands or not _is_allowed(best, "outliers"):
        return
    names = list(dict.fromkeys(str(one.tensor.name) for one in operands))
    rows = _rows(best, names)
    moves = choose_moves(operands, rows, clips=best.scheme.calibrate_method != "MinMax")
    _try(best, "outliers", {name: str(move) for name, move in moves.items()}, rewrite, measure)


def try_channels(best: Best, exclude: Exclusion, rewrite: Rewrite, measure: Measure, *, gates: bool) -> None:
    """Scale channels between convolutions if the outputs are better for it; ``gates``: by a Mul, too."""
    levels = _levels(best.scheme)
    if levels is None or not _is_allowed(best, "channels"):
        return
    reference = best.form.judge.reference
    moves = channel_moves(best.form.graph, reference, levels=levels, exclude=exclude, gates=gates)
    _try(best, "channels", {name: str(move) for name, move in moves.items()}, rewrite, measure)


def _is_allowed(best: Best, move: str) -> bool:
    """Return whether there are runs to look at tensors, to calibrate another form, and to judge it."""
    count = best.form.judge.count
    allowed = best.budget.allows(count + len(best.form.judge.reference.feeds) // _FLOAT_RUNS, models=2)
    if not allowed:
        best.record.notes.append(f"{move}: not tried, the model is too large")
    return allowed


def _try(best: Best, move: str, found: dict[str, str], rewrite: Rewrite, measure: Measure) -> None:
    if found:
        change = f"{len(found)} tensor{'s' if len(found) > 1 else ''}"
        outliers = {**best.scheme.outliers, **found}

        def _write(graph, scheme):  # type: ignore[no-untyped-def]
            rewrite(graph, scheme.with_(outliers=found))

        best.try_form(move, change, lambda: best.form.rewritten(outliers, _write, measure), _COST)


def _rows(best: Best, names: Sequence[str]) -> list[Sample]:
    """Return rows of tensors of the float model on the first samples."""
    reference = best.form.judge.reference
    count = min(len(reference.feeds), _SAMPLES)
    each, seen, samples = max(1, ROWS // count), dict[str, Float32Array](), list[Sample]()

    def _see(name: str, array: Float32Array) -> None:
        seen[name] = some_rows(array, each)

    made: Feed
    for feed, made in zip(reference.feeds[:count], reference.watched(names, _see), strict=False):
        samples.append(Sample(feed, dict(seen), made))
    return samples


def _levels(scheme: Scheme) -> tuple[float, float] | None:
    """Return the steps from zero to the largest number of an activation, and of a weight."""
    activation, weight = scheme.format(scheme.activation), scheme.format(scheme.weight)
    if activation is None or weight is None or not (activation.is_integer and weight.is_integer):
        return None
    numbers, weights = (float(2 ** (one.bits - 1) - 1) for one in (activation, weight))
    return numbers if scheme.is_symmetric(activation) else 2 * numbers + 1, weights
