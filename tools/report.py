"""Show where a quantized model differs from its float model: ``python -m tools.report --help``."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.cli.command_line import Command, make_parser, run
from tools.cli.data_options import report_litter
from tools.cli.job_options import SAMPLES_HELP, DataOptions, force, samples_folder
from tools.cli.options import option
from tools.cli.output_file import check_writable, write_text
from tools.cli.progress import Phases
from tools.cli.said import say
from tools.summaries.timing import cost_lines

if TYPE_CHECKING:
    from transforms.compare.compare_models import ModelComparison

_COMMANDS = """\
--float m.onnx --quantized q.onnx --data samples --output report.html
--float m.onnx --quantized q.onnx --data samples --output report.html --limit 10
--float m.onnx --quantized q.onnx --data images --std 255 --output report.html"""

_DETAILS = f"""\
Both models run on the samples. The page is one self-contained HTML file: a description of both models, the
differences of the results, SQNR of every layer (activations and weights separately), histograms of the worst
tensors against their quantized grid, time and memory. Layers are matched by the names of their tensors,
across the Casts and other nodes that the tools of this package insert; tensors that a fusion removed are
listed. Memory does not grow with the samples.

{SAMPLES_HELP}
"""


_PHASES = ("loading", "results", "matching", "layers", "histograms", "timing")
_THEN = {"results": "matching", "histograms": "timing"}


@dataclass(frozen=True, kw_only=True)
class ReportJob(DataOptions):
    """A comparison of two models."""

    float_model: Path = option("--float MODEL", "the float model", required=True, type=Path)
    quantized: Path = option("--quantized MODEL", "the model quantized from it", required=True, type=Path)
    output: Path = option("--output FILE", "the HTML page to write", required=True, type=Path)
    data: Path = samples_folder(required=True)
    force: bool = force("the output")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    return run(command(), _report, argv)


def command() -> Command[ReportJob]:
    """Return the command line of the tool."""
    return Command(make_parser("report", ReportJob, __doc__, _COMMANDS, _DETAILS), ReportJob)


def _report(job: ReportJob) -> None:
    write_report(job)


def write_report(job: ReportJob) -> ModelComparison:
    """Compare two models, write the page, and say the most important of it."""
    from tools.charts.html_report import page
    from tools.summaries.unequal_results import unequal_lines
    from transforms.compare.compare_models import Data, compare_models
    from transforms.compare.compare_results import output_sqnr

    check_writable(job.output, force=job.force, inputs=(job.float_model, job.quantized))
    report_litter(job.data)
    data = Data(job.data, job.images, job.run, job.limit)
    with Phases(*_PHASES)("loading") as bar:

        def _each(samples: Iterable, what: str) -> Iterator:
            bar.switch(what, "sample")
            yield from bar.each(samples, operator.length_hint(samples))
            if what in _THEN:
                bar.switch(_THEN[what])

        comparison = compare_models(job.float_model, job.quantized, data, progress=_each)
    write_text(job.output, page(comparison))
    say(f"Compared {len(comparison.layers)} tensors on {comparison.samples} samples.")
    for output, sqnr in output_sqnr(comparison.results):
        say(f"  {sqnr:6.1f} dB  output {output}")
    for line in unequal_lines(comparison.results):
        say(line)
    for one in comparison.worst[:3]:
        say(f"  {one.total.sqnr():6.1f} dB  {one.match.name} ({one.match.op}, {one.match.format})")
    for line in cost_lines(*comparison.measurements):
        say(line)
    say(f"Report written to '{job.output}' ({job.output.stat().st_size / 1e3:.0f} kB).")
    return comparison


if __name__ == "__main__":
    sys.exit(main())
