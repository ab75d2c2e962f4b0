"""What two models cost, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transforms.compare.measure_run import Measurement
    from transforms.run.turns import Timing


def duration(timing: Timing) -> str:
    """Return the time of an inference: ``1.20 ms (1.10 to 1.31)``, the median and the quartiles."""
    return f"{1e3 * timing.median:.2f} ms ({1e3 * timing.low:.2f} to {1e3 * timing.high:.2f})"


def cost_lines(baseline: Measurement, model: Measurement) -> Iterator[str]:
    """Yield the time and memory of a model against those of its float model."""
    times = model.run.median / baseline.run.median
    yield (
        f"Time per sample: {duration(model.run)}, float {duration(baseline.run)}: {times:.2f} times, "
        f"{model.run.runs} runs each"
    )
    if model.peak_bytes and baseline.peak_bytes:
        sizes = f"{model.peak_bytes / 1e6:.1f} MB, float {baseline.peak_bytes / 1e6:.1f} MB"
        yield f"Peak memory to open and run: {sizes}: {model.peak_bytes / baseline.peak_bytes:.2f} times"
