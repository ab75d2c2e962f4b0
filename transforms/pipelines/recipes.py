"""The lists of steps from a float model to a model that can be saved."""

from __future__ import annotations

from transforms.pipelines.bf16 import convert, keep_layers, load_float
from transforms.pipelines.compare import compare
from transforms.pipelines.decide import decide
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.keep_lossy import keep_lossy
from transforms.pipelines.load import load
from transforms.pipelines.mix import check_target, keep_target, mix
from transforms.pipelines.place import place
from transforms.pipelines.reach import reach
from transforms.pipelines.require import require
from transforms.pipelines.retune import load_pair, tune_quantized
from transforms.pipelines.steps import Step
from transforms.pipelines.store import store
from transforms.pipelines.try_out import try_out
from transforms.pipelines.tune import tune
from transforms.pipelines.write_for_runtime import write_for_runtime

_ENDING: tuple[Step, ...] = (write_for_runtime, store, try_out, compare)

QUANTIZE: tuple[Step, ...] = (load, *IN_MEMORY, require, keep_lossy, place, reach, tune, *_ENDING)
"""Quantizing by a scheme, with all that outputs on samples decide."""

FAST: tuple[Step, ...] = tuple(step for step in QUANTIZE if step not in (decide, keep_lossy, place, compare))
"""The same by rules alone."""

BF16: tuple[Step, ...] = (load_float, keep_layers, convert, try_out)
"""Converting to BF16."""

TUNE: tuple[Step, ...] = (load_pair, tune_quantized, store, try_out, compare)
"""Tuning the weights of a model that is quantized already."""

MIX: tuple[Step, ...] = (load, mix, tune, keep_target, *_ENDING, check_target)
"""Quantizing in mixed precision."""
