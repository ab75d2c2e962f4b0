"""The recipes that quantize a float model.

Other recipes are in the modules of their steps: ``mix.MIX``, ``bf16.BF16``, ``retune.TUNE``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transforms.conversion.rows import Row, shows
from transforms.pipelines.asked import (
    compares_outputs,
    holds_against_preset,
    places,
    shows_comparison,
)
from transforms.pipelines.for_runtime import FOR_RUNTIME, STORE, TRY_OUT
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.later import later
from transforms.pipelines.load import load
from transforms.pipelines.work import Work, WorkRow

if TYPE_CHECKING:
    from transforms.pipelines.beside_preset import beside_preset
    from transforms.pipelines.compare import compare
    from transforms.pipelines.gate import gate
    from transforms.pipelines.place import place
    from transforms.pipelines.reach import reach
    from transforms.pipelines.require import require
    from transforms.pipelines.tune import tune
else:
    beside_preset, compare, gate = later(__package__, "beside_preset", "compare", "gate")
    place, reach, require, tune = later(__package__, "place", "reach", "require", "tune")


def _reaches(work: Work) -> bool:
    return work.options.goal is not None and work.options.tuning is None  # a tuned model is judged afterwards


def _is_gated(work: Work) -> bool:
    return work.options.goal is not None and work.options.goal.is_gate


_BUILT = ("build", "fit")

TUNE_WEIGHTS: WorkRow = Row(
    tune,
    when=lambda work: work.options.tuning is not None,
    after=(*_BUILT, "mix", "reach"),
    phases=shows("reloading", "tuning"),
)
GATE: WorkRow = Row(gate, when=_is_gated, after=("reach", "tune", "mix"), phases=shows("choosing layers"))
COMPARE: WorkRow = Row(
    compare, when=compares_outputs, needs={"record.first": "try_out"}, phases=shows_comparison
)

QUANTIZE: tuple[WorkRow, ...] = (
    Row(load, phases=shows("loading")),
    *IN_MEMORY,
    Row(require, needs={"record.scheme": "build"}, after=_BUILT),
    Row(place, when=places, after=("require",), phases=shows("timing layers")),
    Row(
        beside_preset,
        when=holds_against_preset,
        needs={"judge": "measure"},
        after=("require", "place"),
        phases=shows("comparing with the preset"),
    ),
    Row(reach, when=_reaches, after=("require", *_BUILT), phases=shows("choosing layers")),
    TUNE_WEIGHTS,
    GATE,
    *FOR_RUNTIME,
    STORE,
    TRY_OUT,
    COMPARE,
)
"""Quantize by a scheme; outputs on samples decide its 'auto' keys."""

_OF_OUTPUTS = ("decide", "place", "beside_preset", "compare")

FAST: tuple[WorkRow, ...] = tuple(row for row in QUANTIZE if row.name not in _OF_OUTPUTS)
"""Quantize by a scheme whose 'auto' keys are set by rules alone."""
