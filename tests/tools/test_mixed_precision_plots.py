"""Plots of mixed precision. Oracle: the numbers that the drawn shapes are at."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_narrow.charts import pareto_plot, plot_file, sensitivity_chart
from transforms.precision.assign import Size, Step
from transforms.precision.sensitivity import LayerSensitivity, Sensitivity
from transforms.search.target import Target

pytest.importorskip("matplotlib")

STEPS = (
    Step((), 40.0, True, Size(16 * 2.0**23)),
    Step((("a", "int8"),), 35.0, True, Size(8 * 2.0**23)),
    Step((("b", "int8"),), 20.0, False, Size(4 * 2.0**23)),
    Step((("c", "int8"),), -math.inf, False, Size(6 * 2.0**23)),
)
TARGET = Target("sqnr", 30.0)
TABLE = Sensitivity(
    "l2",
    1,
    (
        LayerSensitivity("first", "Conv", "mx9", 0.1, 0.002),
        LayerSensitivity("first", "Conv", "mx4", 0.1, 0.5),
        LayerSensitivity("a" * 99, "Conv", "mx9", 0.1, 0.0),
        LayerSensitivity("a" * 99, "Conv", "mx4", 0.1, math.inf),
    ),
)
DRAW: dict[str, Callable[[Path], None]] = {
    "pareto": lambda path: pareto_plot.draw(STEPS, TARGET, path, metric="sqnr in dB"),
    "sensitivity": lambda path: sensitivity_chart.draw(TABLE, path),
    "nothing": lambda path: sensitivity_chart.draw(Sensitivity("l2", 0, ()), path),
}


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_file_appears(draw: Callable[[Path], None], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"plot{suffix}"
    draw(path)
    assert path.read_bytes().startswith({".png": b"\x89PNG", ".svg": b"<?xml"}[suffix])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_without_matplotlib_nothing_is_written(
    draw: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^plots need matplotlib: pip install 'onnx-narrow\[plot\]'$"):
        draw(tmp_path / "plot.png")
    assert not list(tmp_path.iterdir())


def test_steps_are_at_their_sizes_and_values() -> None:
    axes = pareto_plot.plot(STEPS, TARGET, metric="sqnr in dB").axes[0]
    accepted, skipped, limit = axes.lines
    assert accepted.get_xydata().tolist() == [[16.0, 40.0], [8.0, 35.0]]
    assert skipped.get_xydata().tolist() == [[4.0, 20.0]]  # what has no value is left out
    assert list(limit.get_ydata()) == [30.0, 30.0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "accepted",
        "skipped",
        "target: at least 30 dB",
    ]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("operands in MiB", "sqnr in dB")


def test_sizes_in_bits_per_operand_and_no_target() -> None:
    axes = pareto_plot.plot(STEPS, None, metric="l2", elements=2**22).axes[0]
    assert len(axes.lines) == 2
    assert axes.lines[0].get_xdata().tolist() == [32.0, 16.0]
    assert axes.get_xlabel() == "bits per operand"


def test_bars_are_as_long_as_harms_and_the_most_harmful_layer_is_on_top() -> None:
    axes = sensitivity_chart.chart(TABLE).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["first", "..." + "a" * 45]
    ends = [[bar.get_x() + bar.get_width() for bar in bars] for bars in axes.containers]
    low, high = axes.get_xlim()
    assert (low, high) == (1e-3, 1.0)
    assert ends[0] == pytest.approx([0.002, low], rel=1e-12)  # differences of numbers below 1: a few 2^-53
    assert ends[1] == pytest.approx([0.5, high], rel=1e-12)
    assert [bar.get_hatch() for bar in axes.containers[1]] == [None, "///"]
    assert axes.get_xlabel() == "harm (l2, 1 sample)"
    first, second = (bars[0] for bars in axes.containers)
    assert first.get_y() == pytest.approx(second.get_y() + second.get_height())  # side by side


def test_hundreds_of_layers_stay_within_what_can_be_drawn() -> None:
    """matplotlib refuses images of 2^16 dots in a direction; they are drawn with 150 dots per inch."""
    figure, _ = plot_file.new_figure(8, 1e4)
    assert figure.get_size_inches()[1] * 150 < 2**16


def test_bad_paths_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg$"):
        plot_file.check_plot(tmp_path / "plot.pdf", force=False)
    (tmp_path / "plot.svg").touch()
    with pytest.raises(FileExistsError, match=r"plot\.svg' exists; force overwrites it$"):
        plot_file.check_plot(tmp_path / "plot.svg", force=False)
    plot_file.check_plot(tmp_path / "plot.svg", force=True)
