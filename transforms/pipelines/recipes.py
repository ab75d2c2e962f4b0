"""The lists of steps that quantize a float model.

Other lists stand beside their steps: ``mix.MIX``, ``bf16.BF16``, ``retune.TUNE``.
"""

from __future__ import annotations

from transforms.pipelines.beside_preset import beside_preset
from transforms.pipelines.compare import compare
from transforms.pipelines.decide import decide
from transforms.pipelines.gate import gate
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.keep_lossy import keep_lossy
from transforms.pipelines.load import load
from transforms.pipelines.place import place
from transforms.pipelines.reach import reach
from transforms.pipelines.require import require
from transforms.pipelines.steps import Step
from transforms.pipelines.store import store
from transforms.pipelines.try_out import try_out
from transforms.pipelines.tune import tune
from transforms.pipelines.write_for_runtime import write_for_runtime

QUANTIZE: tuple[Step, ...] = (
    load,
    *IN_MEMORY,
    require,
    keep_lossy,
    place,
    beside_preset,
    reach,
    tune,
    gate,
    write_for_runtime,
    store,
    try_out,
    compare,
)
"""Quantizing by a scheme, with all that outputs on samples decide."""

FAST: tuple[Step, ...] = tuple(
    step for step in QUANTIZE if step not in (decide, keep_lossy, place, beside_preset, compare)
)
"""The same by rules alone."""
