"""A plot of the accuracy of number formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx_narrow.api.fidelity import FormatFidelity
from onnx_narrow.charts import plot_file

_MARKERS = ("o", "D")  # told apart without color too


def draw(path: Path, kinds: Sequence[str], formats: Sequence[FormatFidelity]) -> None:
    """Draw a line of dots per format, from few bits to many; further right is more faithful."""
    rows = sorted(formats, key=lambda row: (-row.bits, -row.values[0]))
    places = range(len(rows))
    figure, axes = plot_file.new_figure(8, 0.5 + 0.3 * len(rows))
    ends = [min(row.values) for row in rows], [max(row.values) for row in rows]
    axes.hlines(places, *ends, color="0.8", zorder=1)
    for i, (kind, color, marker) in enumerate(zip(kinds, plot_file.COLORS, _MARKERS, strict=False)):
        values = [row.values[i] for row in rows]
        axes.scatter(values, places, color=color, marker=marker, label=kind, zorder=2)
    axes.set_yticks(places, labels=[f"{row.name}, {row.bits:g} bits" for row in rows])
    axes.set(xlabel="fidelity in dB", xlim=(0, None))
    axes.grid(axis="x", color="0.9")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper right", frameon=False)
    plot_file.save(figure, path)
