"""Gates on a metric: the keywords by which every function that writes a model takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_narrow.api.usage import Given

if TYPE_CHECKING:
    from transforms.search.gate import Gate

BOUNDS = ("min_metric", "max_loss")


def is_gated(given: Given) -> bool:
    """Return whether keywords ask for a gate."""
    return any(name in given for name in BOUNDS)


def gate_in(given: Given) -> Gate | None:
    """Return the gate that keywords ask for, if any; a file that the metric names is executed.

    Raises ValueError for a metric that will not do.
    """
    if not is_gated(given):
        return None
    from transforms.search.named_metrics import gate_of  # imports take time that small jobs notice

    return gate_of(given["metric"], given.get("min_metric"), given.get("max_loss"))
