"""Plots as image files, drawn by matplotlib, which is only needed for them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from transforms.files.cleanup import replacing
from transforms.files.output_file import check_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#1f5fa8", "#c2601a", "#3c8d5a", "#8a4fa3", "#a8871f", "#5b6b7a")
_SUFFIXES = (".png", ".svg")
_DOTS_PER_INCH = 150
_HIGHEST = 400.0  # inches: matplotlib draws less than 2^16 dots


def check_plot(path: Path, *, force: bool) -> None:
    """Refuse a plot that cannot be drawn, before any work. Raises ValueError or OSError."""
    if path.suffix not in _SUFFIXES:
        raise ValueError(f"plot '{path}' must end in {' or '.join(_SUFFIXES)}")
    check_writable(path, force=force)
    _check_library()


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of that many inches and its axes, with a light grid and without a box.

    Raises ValueError if matplotlib is not installed.
    """
    _check_library()
    log = logging.getLogger("matplotlib")
    if not log.isEnabledFor(logging.DEBUG):  # --verbose
        log.setLevel(logging.ERROR)  # without a home folder it works without a cache
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, min(height, _HIGHEST)))
    axes = figure.subplots()
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG or SVG, by the name's ending, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], bbox_inches="tight", dpi=_DOTS_PER_INCH)


def _check_library() -> None:
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib: pip install 'onnx-narrow[plot]'")
