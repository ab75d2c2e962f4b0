"""What a job is told beside its scheme and samples, by the keywords of any function that writes a model."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_narrow.api import gates
from onnx_narrow.api.usage import Given
from transforms.pipelines.options import Options
from transforms.runtime.session import RunOptions
from transforms.search.target import LOST_TOP1, Target

if TYPE_CHECKING:
    from transforms.finetune.finished_layers import FinishedLayers


def options_of(given: Given) -> Options:
    """Return the options of a job; OSError if the folder of ``resume`` cannot be made."""
    named = {field.name: given[field.name] for field in fields(Options) if field.name in given}
    embeddings = given.get("embeddings", "")
    special = {
        "run": run_of(given),
        "goal": _goal(given),
        "times": given.get("time", True),
        "embeddings": embeddings.replace("float", ""),
        "stores_tied": embeddings != "float",
        "may_compare": "fast" not in given,
        "external_data": given.get("save_as_external_data", False),
        "finished": _finished(given),
    }
    return Options(**{**named, **special})


def run_of(given: Given) -> RunOptions:
    """Return how models run."""
    return RunOptions(given.get("provider") or "cpu", given.get("threads") or 0)


def _goal(given: Given) -> Target | None:
    """Return what the outputs have to reach; ValueError for a metric that will not do."""
    if "min_sqnr" in given:
        return Target("sqnr", given["min_sqnr"])
    return Target(LOST_TOP1, given["top1"]) if "top1" in given else gates.gate_in(given)


def _finished(given: Given) -> FinishedLayers | None:
    """Return where layers are kept until the model is written."""
    if "resume" not in given:
        return None
    from transforms.finetune.finished_layers import FinishedLayers  # imports take time that small jobs notice

    return FinishedLayers(Path(given["resume"]))
