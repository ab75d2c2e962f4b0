"""The options of a job other than its scheme and samples, from the keywords of a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_narrow.api.usage import fields_in
from onnx_narrow.options.option import Keywords
from transforms.pipelines.options import Options
from transforms.runtime.session import RunOptions
from transforms.search.target import LOST_TOP1, Target

if TYPE_CHECKING:
    from transforms.finetune.finished_layers import FinishedLayers
    from transforms.search.gate import Gate


def options_of(keywords: Keywords, **more: Any) -> Options:
    """Return the options of a job, and ``more``; OSError if the folder of ``resume`` cannot be made."""
    embeddings = keywords.get("embeddings", "")
    special = {
        "run": run_of(keywords),
        "goal": _goal(keywords),
        "times": keywords.get("time", True),
        "embeddings": embeddings.replace("float", ""),
        "stores_tied": embeddings != "float",
        "may_compare": "fast" not in keywords,
        "external_data": keywords.get("save_as_external_data", False),
        "finished": _finished(keywords["resume"]) if "resume" in keywords else None,
    }
    return Options(**{**fields_in(Options, keywords), **special, **more})


def run_of(keywords: Keywords) -> RunOptions:
    """Return how models run."""
    return RunOptions(keywords.get("provider") or "cpu", keywords.get("threads") or 0)


def _goal(keywords: Keywords) -> Target | None:
    """Return the goal that the outputs have to reach; ValueError for an unsuitable metric."""
    if "min_sqnr" in keywords:
        return Target("sqnr", keywords["min_sqnr"])
    return Target(LOST_TOP1, keywords["top1"]) if "top1" in keywords else gate_in(keywords)


def gate_in(keywords: Keywords) -> Gate | None:
    """Return the gate that keywords ask for, if any; a file that the metric names is executed.

    Raises ValueError for an unsuitable metric. Every model passes a metric without a bound.
    """
    if "metric" not in keywords:
        return None
    from transforms.search import named_metrics  # imports take time that small jobs notice

    if keywords.keys().isdisjoint(("min_metric", "max_loss")):
        return named_metrics.plain_gate(keywords["metric"])
    return named_metrics.gate_of(keywords["metric"], keywords.get("min_metric"), keywords.get("max_loss"))


def _finished(folder: Path) -> FinishedLayers:
    """Return where layers are kept until the model is written."""
    from transforms.finetune.finished_layers import FinishedLayers  # imports take time that small jobs notice

    return FinishedLayers(folder)
