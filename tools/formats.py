"""Print all number formats and how well they keep numbers: ``python -m tools.formats --help``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_narrow.api.bars import Progress
from onnx_narrow.charts import plot_file
from tools.cli.command_line import Command, make_parser, run
from tools.cli.job_options import Options, force
from tools.cli.options import option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = dict[str, list[NDArray[np.float32]]]

SAMPLES = 1 << 20
MARKERS = ("o", "D")  # told apart without color too
_COMMANDS = """\

--input m.onnx
--plot formats.svg"""

_DETAILS = """\
Fidelity is the ratio of the signal's power to the power of the rounding error, in decibel (6 dB are one bit).
Integer formats get one scale per tensor; the 4-bit ones (ONNX has them from operator set 21 on) are meant for
weights, with a scale per channel. The heavy-tailed distribution is Student's t, 3 degrees of freedom.
"""


@dataclass(frozen=True, kw_only=True)
class FormatsJob(Options):
    """The table of formats."""

    input: Path | None = option(
        "--input --model M.onnx", "measure on the weights of this model instead", type=Path
    )
    plot: Path | None = option(
        "--plot FILE", "also draw the fidelity of each format: .png or .svg", type=Path
    )
    force: bool = force("an existing plot")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    return run(command(), show_formats, argv)


def command() -> Command[FormatsJob]:
    """Return the command line of the tool."""
    return Command(make_parser("formats", FormatsJob, __doc__, _COMMANDS, _DETAILS), FormatsJob)


def show_formats(job: FormatsJob) -> None:
    """Measure, print the table and draw the plot."""
    if job.plot:
        plot_file.check_plot(job.plot, force=job.force)
    samples = read_weights(job.input) if job.input else draw_samples()
    rows = measure_formats(samples)
    print_table(list(samples), rows)
    if job.plot:
        draw_plot(job.plot, list(samples), rows)
        print(f"plot: {job.plot}")


def draw_samples() -> Samples:
    """Return a million numbers of a normal and of a heavy-tailed distribution."""
    import numpy as np

    rng = np.random.default_rng(0)
    normal, heavy = rng.standard_normal(SAMPLES), rng.standard_t(3, SAMPLES)
    return {"normal": [normal.astype(np.float32)], "heavy tail": [heavy.astype(np.float32)]}


def read_weights(path: Path) -> Samples:
    """Return the float32 and float16 weights of a model, as float32. Raises ValueError if it has none."""
    import numpy as np

    from transforms import model_io
    from transforms.graph import walk

    graph = model_io.load(path)
    floats = (t for t in walk.constants(graph) if t.dtype in (np.float32, np.float16))
    arrays = [np.asarray(tensor.values) for tensor in floats]
    weights = [array.astype(np.float32) for array in arrays if array.size > 1]
    if not weights:
        raise ValueError(f"model '{path}' has no float weights")
    return {"weights": weights}


def measure_formats(samples: Samples) -> list[tuple[str, float, int, list[float]]]:
    """Return name, bits per element, block and the fidelity on each kind of sample, for each format."""
    import ops

    with Progress("measuring", "format") as bar:
        return [
            (name, fmt.bits, fmt.block, [fidelity(arrays, name) for arrays in samples.values()])
            for name, fmt in bar.each(ops.FORMATS.items(), len(ops.FORMATS))
        ]


def fidelity(arrays: Iterable[NDArray[np.float32]], name: str) -> float:
    """Return 10 log10 of signal power over error power of all arrays together, blocks along the last axis."""
    import numpy as np

    import ops

    signal = error = 0.0
    for x in arrays:
        difference = ops.quantize_dequantize(x, name).astype(np.float64) - x
        signal += float((x.astype(np.float64) ** 2).sum())
        error += float((difference**2).sum())
    return 10 * float(np.log10(signal / error)) if error and signal else float("inf")


def print_table(kinds: list[str], rows: list[tuple[str, float, int, list[float]]]) -> None:
    """Print one line per format."""
    print(f"{'format':12} {'bits':>6} {'block':>6}" + "".join(f" {kind + ' dB':>14}" for kind in kinds))
    for name, bits, block, values in rows:
        print(
            f"{name:12} {bits:6g} {block if block > 1 else '-':>6}"
            + "".join(f" {value:14.1f}" for value in values)
        )


def draw_plot(path: Path, kinds: list[str], rows: list[tuple[str, float, int, list[float]]]) -> None:
    """Draw a line of dots per format, from few bits to many; further right is more faithful."""
    rows = sorted(rows, key=lambda row: (-row[1], -row[3][0]))
    places = range(len(rows))
    figure, axes = plot_file.new_figure(8, 0.5 + 0.3 * len(rows))
    axes.hlines(places, [min(row[3]) for row in rows], [max(row[3]) for row in rows], color="0.8", zorder=1)
    for i, (kind, color, marker) in enumerate(zip(kinds, plot_file.COLORS, MARKERS, strict=False)):
        axes.scatter([row[3][i] for row in rows], places, color=color, marker=marker, label=kind, zorder=2)
    axes.set_yticks(places, labels=[f"{name}, {bits:g} bits" for name, bits, _, _ in rows])
    axes.set(xlabel="fidelity in dB", xlim=(0, None))
    axes.grid(axis="x", color="0.9")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper right", frameon=False)
    plot_file.save(figure, path)


if __name__ == "__main__":
    sys.exit(main())
