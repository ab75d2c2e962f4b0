"""A plot of the trade-off of mixed precision: size against the metric, for each model that was tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_narrow.charts import plot_file
from transforms.precision.assign import Step
from transforms.search.target import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BITS_PER_MIB = 8 * 2.0**20


def draw(
    steps: Sequence[Step], target: Target | None, path: Path, *, metric: str, elements: int | None = None
) -> None:
    """Write the plot as .png or .svg; ValueError where matplotlib is not installed."""
    plot_file.save(plot(steps, target, metric=metric, elements=elements), path)


def plot(steps: Sequence[Step], target: Target | None, *, metric: str, elements: int | None = None) -> Figure:
    """Return dots, joined by a line, for steps that were accepted, crosses for others, a line for the target.

    ``metric`` names the upright axis. The other one is in bits per operand where the number of all, weights
    and computed ones, is given, else in MiB of them. What has no finite value is left out. ValueError without
    matplotlib.
    """
    figure, axes = plot_file.new_figure(8, 5)
    unit = elements or _BITS_PER_MIB
    for accepted, marker, line, label in ((True, "o", "-", "accepted"), (False, "x", "", "skipped")):
        some = [step for step in steps if step.accepted is accepted and math.isfinite(step.value)]
        x, y = [step.size.total / unit for step in some], [step.value for step in some]
        color = plot_file.COLORS[0 if accepted else 1]
        axes.plot(x, y, linestyle=line, marker=marker, linewidth=1, color=color, label=label)
    if target:
        axes.axhline(target.limit, color="0.4", linestyle="--", linewidth=1, label=f"target: {target.bound}")
    axes.set(xlabel="bits per operand" if elements else "operands in MiB", ylabel=metric)
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    return figure
