"""Show where a quantized model differs from its float model: ``python -m tools.report --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cli.command_line import Command, make_parser, run
from tools.cli.job_options import SAMPLES_HELP, DataOptions, force, samples_folder
from tools.cli.option_values import number
from tools.cli.options import option

_COMMANDS = """\
--float m.onnx --quantized q.onnx --data samples --output report.html
--float m.onnx --quantized q.onnx --data samples --output report.html --limit 10
--float m.onnx --quantized q.onnx --data images --std 255 --output report.html"""

_DETAILS = f"""\
Both models run on the samples. First on the page is where the loss begins: each layer is quantized alone, in
the float model, those in front on more samples, and those of most error are put back to float together,
until half of the error of an output goes with them; for these there is a cause, and what helps as a command
to copy, with its price in bytes. --json and --csv write the same, of every layer. The page is one
self-contained HTML file: a description of both models, the differences of the results, SQNR of every layer
(activations and weights separately), histograms of the worst tensors against their quantized grid, time and
memory. Layers are matched by the names of their tensors, across the Casts and other nodes that the tools of
this package insert; tensors that a fusion removed are listed. Memory does not grow with the samples.

{SAMPLES_HELP}
"""


@dataclass(frozen=True, kw_only=True)
class ReportJob(DataOptions):
    """A comparison of two models."""

    float_model: Path = option("--float MODEL", "the float model", required=True, type=Path)
    quantized: Path = option("--quantized MODEL", "the model quantized from it", required=True, type=Path)
    output: Path = option("--output FILE", "the HTML page to write", required=True, type=Path)
    data: Path = samples_folder(required=True)
    json: Path | None = option(
        "--json FILE", "write the error that each layer adds, inherits and has in all, as JSON", type=Path
    )
    csv: Path | None = option("--csv FILE", "write the table of layers as CSV", type=Path)
    min_sqnr: float | None = option(
        "--min-sqnr DB", "rate results as good, borderline or bad by this SQNR", type=number()
    )
    force: bool = force("the outputs")


_OF_TOOL = ("float_model", "quantized", "output")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    return run(command(), _report, argv)


def command() -> Command[ReportJob]:
    """Return the command line of the tool."""
    return Command(make_parser("report", ReportJob, __doc__, _COMMANDS, _DETAILS), ReportJob)


def _report(job: ReportJob) -> None:
    import onnx_narrow
    from tools.cli.printed import Printed

    models = job.float_model, job.quantized
    onnx_narrow.report(*models, job.output, **job.keywords(*_OF_TOOL), progress=Printed(verbose=job.verbose))


if __name__ == "__main__":
    sys.exit(main())
