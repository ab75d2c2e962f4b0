"""Compare the results of a quantized model with its baseline's: ``python -m tools.evaluate --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cli.command_line import Command, make_parser, run
from tools.cli.gate_options import GateOptions
from tools.cli.job_options import force
from tools.cli.option_values import number
from tools.cli.options import OTHER, option

_COMMANDS = """\
--baseline_results_folder a --quantized_results_folder b
--baseline_results_folder a --quantized_results_folder b --labels labels.npy
--baseline_results_folder a --quantized_results_folder b --csv files.csv"""

_DETAILS = """\
Results are .npy, .png and .jpg files of equal names in both folders. Those of several outputs lie in one
sub-folder per output, as `python -m tools.infer` writes them, and are compared output by output.

definitions, for baseline x and quantized y with n elements:
  cos similarity  x.y / (|x| |y|), 1 for equal arrays, also if both are zero
  l2 distance     sqrt(sum((x - y)^2)), not divided by n
  psnr            10 log10(peak^2 n / sum((x - y)^2)) dB; the peak is 255 for arrays of type uint8 (8-bit
                  images) and the largest magnitude of the baseline array otherwise, unless --peak sets it
  ssim            mean structural similarity of scikit-image (uniform window of 7 x 7) with that peak as data
                  range, for images: [H, W], [C, H, W], [H, W, C] with 1, 3 or 4 channels, and batches of them
  sqnr            10 log10(sum(x^2) / sum((x - y)^2)) dB
--metric tells one of sqnr, top1, kl, cosine, f1 or of a function in a Python file, as of tools.quantize, with
its standard error over samples; with --min-metric or --max-loss, exit code 3 says that it is missed.
Equal arrays have a psnr and sqnr of inf, and so does a mean over files of which one is equal. Files with NaN
or infinite elements are counted, excluded from mean and worst values, and set exit code 1. In JSON, inf is
the string "inf" and an excluded value is null; in CSV, "inf" and empty. Files of integers beside files of
other numbers, such as class numbers beside boxes, have a line and do not enter mean and worst values."""


@dataclass(frozen=True, kw_only=True)
class EvaluateJob(GateOptions):
    """A comparison of two folders of results."""

    baseline_results_folder: Path = option(
        "--baseline_results_folder A", "folder of the float model's results", required=True, type=Path
    )
    quantized_results_folder: Path = option(
        "--quantized_results_folder B", "folder of the quantized model's", required=True, type=Path
    )
    labels: Path | None = option(
        "--labels --top1 LABELS.npy", "class numbers of all rows: report accuracy and agreement", type=Path
    )
    logits: str | None = option(
        "--logits OUTPUT",
        "output that holds logits of tokens: report KL divergence and how often the first choice is the "
        "same; mean and worst values are of it alone, without the mean of each row",
    )
    tokens: Path | None = option(
        "--tokens PATH",
        "the samples that the results belong to, with input_ids, as --data of tools.infer: report perplexity",
        type=Path,
    )
    max_kl: float | None = option("--max-kl NATS", "fail above this KL divergence", type=number(0))
    max_perplexity: float | None = option("--max-perplexity X", "fail above this perplexity", type=number(1))
    min_same: float | None = option(
        "--min-same SHARE",
        "fail below this share of the same first choice",
        type=number(0, 1),
    )
    min_greedy: float | None = option(
        "--min-greedy SHARE",
        "fail below this share of the same tokens that both models wrote (tools.infer --generate)",
        type=number(0, 1),
    )
    json: Path | None = option("--json FILE", "write all figures as JSON", type=Path)
    csv: Path | None = option("--csv FILE", "write one line per file as CSV", type=Path)
    peak: float | None = option(
        "--peak X", "signal peak for psnr and ssim", group=OTHER, type=number(0, above=True)
    )
    allow_missing: bool = option(
        "--allow-missing", "compare the file names common to both folders", group=OTHER
    )
    force: bool = force("the files of --json and --csv")


_FOLDERS = ("baseline_results_folder", "quantized_results_folder")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    return run(command(), _evaluate, argv)


def command() -> Command[EvaluateJob]:
    """Return the command line of the tool."""
    return Command(make_parser("evaluate", EvaluateJob, __doc__, _COMMANDS, _DETAILS), EvaluateJob)


def _evaluate(job: EvaluateJob) -> None:
    import onnx_narrow
    from tools.cli.printed import Printed

    folders = job.baseline_results_folder, job.quantized_results_folder
    onnx_narrow.evaluate(*folders, **job.keywords(*_FOLDERS), progress=Printed(verbose=job.verbose))


if __name__ == "__main__":
    sys.exit(main())
