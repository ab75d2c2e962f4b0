"""A bar chart of how much each layer suffers from each format."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_narrow.charts import plot_file
from onnx_narrow.summaries.words import shortened
from transforms.graph.some_names import counted
from transforms.precision.sensitivity import Sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR = 0.16  # inches


def draw(sensitivity: Sensitivity, path: Path) -> None:
    """Write the chart as .png or .svg; ValueError where matplotlib is not installed."""
    plot_file.save(chart(sensitivity), path)


def chart(sensitivity: Sensitivity) -> Figure:
    """Return bars of harm, on a logarithmic axis, for each layer one of each format, the most harmful on top.

    An infinite harm is hatched and reaches the edge; one of 0 has no bar. ValueError without matplotlib.
    """
    harms = {(damage.layer, damage.label): damage.harm for damage in sensitivity.damages}
    labels = list(dict.fromkeys(damage.label for damage in sensitivity.damages))
    layers = list(dict.fromkeys(damage.layer for damage in reversed(sensitivity.ranked())))[::-1]
    figure, axes = plot_file.new_figure(8, 1 + _BAR * (len(layers) * (len(labels) + 1)))
    low, high = _range(list(harms.values()))
    share = 1 / (len(labels) + 1)
    for i, label in enumerate(labels):
        places = [place - (i - (len(labels) - 1) / 2) * share for place in range(len(layers))]
        widths = [min(max(harms.get((layer, label), 0.0), low), high) - low for layer in layers]
        color = plot_file.COLORS[i % len(plot_file.COLORS)]
        bars = axes.barh(places, widths, share, left=low, color=color, label=label)
        for bar, layer in zip(bars, layers, strict=True):
            if math.isinf(harms.get((layer, label), 0.0)):
                bar.set_hatch("///")
    axes.set_yticks(range(len(layers)), labels=[shortened(layer) for layer in layers])
    samples = counted(sensitivity.samples, "sample")
    axes.set(xscale="log", xlim=(low, high), ylim=(-0.6, len(layers) - 0.4))
    axes.set_xlabel(f"harm ({sensitivity.metric}, {samples})")
    axes.grid(axis="x", color="0.9")
    axes.tick_params(axis="y", length=0)
    if labels:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=len(labels), frameon=False
        )  # above the bars
    return figure


def _range(harms: list[float]) -> tuple[float, float]:
    """Return powers of ten below the least harm and above the largest of those that a logarithm has."""
    known = [harm for harm in harms if 0 < harm < math.inf]
    if not known:
        return 0.1, 10.0
    return 10.0 ** (math.ceil(math.log10(min(known))) - 1), 10.0 ** (math.floor(math.log10(max(known))) + 1)
