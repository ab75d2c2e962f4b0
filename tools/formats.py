"""Print all number formats and how well they keep numbers: ``python -m tools.formats --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tools.cli.command_line import Tool
from tools.cli.job import Job

if TYPE_CHECKING:
    from onnx_narrow.api.fidelity import FormatFidelity

_COMMANDS = """\

--input m.onnx
--plot formats.svg"""

_DETAILS = """\
Fidelity is the ratio of the signal's power to the power of the rounding error, in decibel (6 dB are one bit).
Integer formats get one scale per tensor; the 4-bit ones (ONNX has them from operator set 21 on) are meant for
weights, with a scale per channel. The heavy-tailed distribution is Student's t, 3 degrees of freedom.
"""


def _why_not(job: Job) -> str | None:
    return "--force requires --plot" if job.get("force") and not job.get("plot") else None


def _show(job: Job) -> None:
    """Measure, print the table and draw the plot."""
    from onnx_narrow.api.fidelity import draw_samples, measure_formats, read_weights
    from onnx_narrow.charts import fidelity_plot, plot_file
    from tools.cli.printed import Printed

    model, plot = job.get("model"), job.get("plot")
    if plot:
        plot_file.check_plot(plot, force=job.get("force", False))
    samples = read_weights(model) if model else draw_samples()
    with Printed() as events:
        rows = measure_formats(samples, events)
    _print_table(list(samples), rows)
    if plot:
        fidelity_plot.draw(plot, list(samples), rows)
        print(f"plot: {plot}")


def _print_table(kinds: Sequence[str], rows: Sequence[FormatFidelity]) -> None:
    """Print one line per format."""
    print(f"{'format':12} {'bits':>6} {'block':>6}" + "".join(f" {kind + ' dB':>14}" for kind in kinds))
    for row in rows:
        block = row.block if row.block > 1 else "-"
        values = "".join(f" {value:14.1f}" for value in row.values)
        print(f"{row.name:12} {row.bits:6g} {block:>6}{values}")


main = Tool("formats", "formats", __doc__, _COMMANDS, _DETAILS, work=_show, why_not=_why_not)
"""Run the tool and return its exit code."""

if __name__ == "__main__":
    sys.exit(main())
