"""Show where a quantized model differs from its float model: ``python -m tools.report --help``."""

from __future__ import annotations

import html
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.cli.command_line import Command, make_parser, run, same_file
from tools.cli.data_options import report_litter
from tools.cli.job_options import SAMPLES_HELP, DataOptions, force, samples_folder
from tools.cli.option_values import number
from tools.cli.options import option
from tools.cli.output_file import check_writable, total_bytes, write_text
from tools.cli.progress import Phases
from tools.cli.said import say
from tools.summaries.timing import cost_lines

if TYPE_CHECKING:
    from transforms.compare.compare_models import Data, ModelComparison
    from transforms.origins.loss_origins import LossOrigins
    from transforms.run.events import Progress

_MOST_BYTES = 1 << 26
"""Of a float model that is looked at layer by layer: that takes several copies of it in memory."""

_COMMANDS = """\
--float m.onnx --quantized q.onnx --data samples --output report.html
--float m.onnx --quantized q.onnx --data samples --output report.html --limit 10
--float m.onnx --quantized q.onnx --data images --std 255 --output report.html"""

_DETAILS = f"""\
Both models run on the samples. First on the page is where the loss begins: each layer is quantized alone, in
the float model, and those of most error are put back to float together, until half of the error of an output
goes with them; for these there is a cause, and what helps as a command to copy. --json and --csv write the
same, of every layer. The page is one self-contained HTML file: a description of both models, the
differences of the results, SQNR of every layer (activations and weights separately), histograms of the worst
tensors against their quantized grid, time and memory. Layers are matched by the names of their tensors,
across the Casts and other nodes that the tools of this package insert; tensors that a fusion removed are
listed. Memory does not grow with the samples.

{SAMPLES_HELP}
"""


_PHASES = ("loading", "results", "matching", "layers", "histograms", "timing", "origins")
_THEN = {"results": "matching", "histograms": "timing"}


@dataclass(frozen=True, kw_only=True)
class ReportJob(DataOptions):
    """A comparison of two models."""

    float_model: Path = option("--float MODEL", "the float model", required=True, type=Path)
    quantized: Path = option("--quantized MODEL", "the model quantized from it", required=True, type=Path)
    output: Path = option("--output FILE", "the HTML page to write", required=True, type=Path)
    data: Path = samples_folder(required=True)
    json: Path | None = option(
        "--json FILE", "write what each layer adds, inherits and holds of the errors, as JSON", type=Path
    )
    csv: Path | None = option("--csv FILE", "write the table of layers as CSV", type=Path)
    min_sqnr: float | None = option(
        "--min-sqnr DB", "mark the results as good, to be looked at, or bad by this SQNR", type=number()
    )
    force: bool = force("the outputs")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    return run(command(), _report, argv)


def command() -> Command[ReportJob]:
    """Return the command line of the tool."""
    return Command(make_parser("report", ReportJob, __doc__, _COMMANDS, _DETAILS), ReportJob)


def _report(job: ReportJob) -> None:
    write_report(job)


def write_report(job: ReportJob) -> tuple[ModelComparison, LossOrigins | None]:
    """Compare two models, write the page, say the most important of it, and return what was found."""
    from tools.cli.unrolled import unrolled
    from transforms.compare.compare_models import Data

    files = {"--output": job.output, "--json": job.json, "--csv": job.csv}
    if reason := same_file(files):
        raise ValueError(reason)
    for path in filter(None, files.values()):
        check_writable(path, force=job.force, inputs=(job.float_model, job.quantized))
    report_litter(job.data)
    with unrolled(job, job.float_model) as own:
        return _write_report(job, Data(own.data, own.images, own.run, own.limit))


def _write_report(job: ReportJob, data: Data) -> tuple[ModelComparison, LossOrigins | None]:
    from tools.charts.html_report import page
    from tools.summaries.results import cache_line, view_lines
    from tools.summaries.unequal_results import unequal_lines
    from transforms.compare.compare_models import compare_models
    from transforms.compare.compare_results import output_sqnr

    with Phases(*_PHASES)("loading") as bar:

        def _each(samples: Iterable, phase: str) -> Iterator:
            bar.switch(phase, "sample")
            yield from bar.each(samples, operator.length_hint(samples))
            if phase in _THEN:
                bar.switch(_THEN[phase])

        # compare outputs and tensors, then find the layers where the loss begins
        comparison = compare_models(job.float_model, job.quantized, data, progress=_each)
        bar.switch("origins", "layer")
        origins, lead, about = _origins(job, data, bar.show)
    # write the page and tables, then print the main figures
    write_text(job.output, page(comparison, lead, job.min_sqnr))
    _write_tables(job, origins)
    say(f"Compared {len(comparison.layers)} tensors on {comparison.samples} samples.")
    for output, sqnr in output_sqnr(comparison.counted):
        say(f"  {sqnr:6.1f} dB  output {output}")
    for line in (*cache_line(comparison.results, comparison.view), *view_lines(comparison.view)):
        say(line)
    for line in unequal_lines(comparison.results):
        say(line)
    for layer in comparison.worst[:3]:
        say(f"  {layer.total.sqnr():6.1f} dB  {layer.match.name} ({layer.match.op}, {layer.match.format})")
    for line in about:
        say(line)
    for line in cost_lines(*comparison.measurements):
        say(line)
    say(f"Report written to '{job.output}' ({job.output.stat().st_size / 1e3:.0f} kB).")
    return comparison, origins


def _origins(job: ReportJob, data: Data, progress: Progress) -> tuple[LossOrigins | None, str, list[str]]:
    """Return where the loss begins, as a section of the page and as lines; or why that is not known."""
    from tools.charts.origins_section import origins_section
    from tools.summaries.origins import Made, lines
    from transforms import model_io
    from transforms.graph import walk
    from transforms.graph.selection import label_of
    from transforms.graph.typed import source_files
    from transforms.judge.budget import too_large
    from transforms.origins.loss_table import origins_of_files
    from transforms.run.run_model import open_model
    from transforms.scheme.sources import recorded_scheme

    # refuse models on which the search takes too long, or has no outputs to compare
    model = model_io.load(job.float_model)
    try:
        if too_large(model) or total_bytes(source_files(model)) > _MOST_BYTES:
            raise ValueError(f"the float model has more than {_MOST_BYTES:,} bytes, or too many nodes")
        opened = open_model(job.float_model, data.options)
        for output in opened.session.get_outputs():
            if not output.type.startswith("tensor("):
                raise ValueError(f"output '{output.name}' is not a tensor")
    except ValueError as error:
        return _untold(error)
    # how the quantized model was made decides which commands can be proposed
    quantized = model_io.load(job.quantized)
    creation = Made(
        job.float_model,
        job.quantized,
        _samples(job),
        quantized.info.metadata,
        {label_of(node) for node in walk.nodes(model)},
        set(walk.tensors(model)),
        recorded_scheme(quantized),
    )
    try:
        feeds = (feed for _, feed in data.samples(opened.inputs))
        origins = origins_of_files(job.float_model, job.quantized, feeds, data.options, progress)
    except ValueError as error:
        return _untold(error)
    return origins, origins_section(origins, creation), list(lines(origins, creation))


def _samples(job: ReportJob) -> list[str]:
    """Return the options that name the samples, for commands to copy."""
    given = ["--sequences"] if job.sequences else []
    states = [word for fed, back in job.states for word in ("--state", f"{fed}={back}")]
    encoder = ["--feeds-from", str(job.feeds_from)] if job.feeds_from else []
    pairs = [word for made, fed in job.feeds for word in ("--feed", f"{made}={fed}")]
    return ["--data", str(job.data), *given, *states, *encoder, *pairs]


def _untold(error: ValueError) -> tuple[None, str, list[str]]:
    why = f"Not told layer by layer: {error}"
    return None, f'<section class="first"><p>{html.escape(why)}</p></section>', [why]


def _write_tables(job: ReportJob, origins: LossOrigins | None) -> None:
    """Write the files beside the page. Raises ValueError where nothing is known of layers."""
    from transforms.origins.loss_table import to_csv, to_json

    if origins is None:
        if job.json or job.csv:
            raise ValueError("--json and --csv: it is not known what each layer adds, the page says why")
        return
    if job.json:
        about = {"float": str(job.float_model), "quantized": str(job.quantized)}
        write_text(job.json, to_json(origins, about))
    if job.csv:
        write_text(job.csv, to_csv(origins))


if __name__ == "__main__":
    sys.exit(main())
