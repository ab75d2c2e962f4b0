"""Show where a quantized model departs from its float model: ``python -m tools.report --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.cli.command_line import make_parser, run
from tools.cli.data_options import SAMPLES_HELP, add_data_options, image_options, report_litter
from tools.cli.output_file import check_writable, write_text

_DESCRIPTION = """\
Run a float model and the quantized model made from it on the samples of a folder, and write one HTML file
that needs nothing else: what each model is, the differences of the results, SQNR of every layer (activations
and weights apart), histograms of the worst tensors against their quantized grid, time and memory. Layers are
matched by the names of their tensors, across the Casts and other nodes that the tools of this package insert;
tensors that a fusion removed are listed. Only sums are kept: memory does not grow with the samples."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    return run(_parser(), _report, argv)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("report", _DESCRIPTION, SAMPLES_HELP)
    parser.add_argument("--float", required=True, type=Path, metavar="F.onnx", help="model that is right")
    parser.add_argument("--quantized", required=True, type=Path, metavar="Q.onnx", help="model made from it")
    parser.add_argument("--output", required=True, type=Path, metavar="REPORT.html", help="page to write")
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    add_data_options(parser)
    return parser


def _report(options: argparse.Namespace) -> None:
    from tools.charts.html_report import page
    from transforms.compare.compare_models import Data, compare_models
    from transforms.runtime.session import RunOptions

    check_writable(options.output, force=options.force, inputs=(options.float, options.quantized))
    report_litter(options.data)
    data = Data(
        options.data, image_options(options), RunOptions(options.provider, options.threads), options.limit
    )
    comparison = compare_models(options.float, options.quantized, data, progress=_progress)
    write_text(options.output, page(comparison))
    print(f"Compared {len(comparison.layers)} tensors on {comparison.samples} samples.")
    for one in comparison.worst[:3]:
        print(f"  {one.total.sqnr():6.1f} dB  {one.match.name} ({one.match.op}, {one.match.format})")
    print(f"Report written to '{options.output}' ({options.output.stat().st_size / 1e3:.0f} kB).")


def _progress(samples: Iterable, what: str) -> Iterable:
    from tqdm import tqdm

    return tqdm(samples, desc=what, unit="sample", disable=not sys.stderr.isatty(), leave=False)


if __name__ == "__main__":
    sys.exit(main())
