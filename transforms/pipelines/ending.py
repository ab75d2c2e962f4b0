"""The list of steps from a graph to a model that can be saved."""

from __future__ import annotations

from transforms.pipelines.compare import compare
from transforms.pipelines.steps import Step
from transforms.pipelines.store import store
from transforms.pipelines.try_out import try_out
from transforms.pipelines.write_for_runtime import write_for_runtime

ENDING: tuple[Step, ...] = (write_for_runtime, store, try_out, compare)
"""Write parts for the runtime, store weights, run the model once, compare it as it is written."""
