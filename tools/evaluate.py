"""Compare the results of a quantized model with its baseline's: ``python -m tools.evaluate --help``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_narrow.api.bars import Progress
from onnx_narrow.summaries.result_files import as_csv, as_json, by_output, figures, full_name
from onnx_narrow.summaries.results import greedy_lines, language_lines, missed, step_lines
from onnx_narrow.summaries.words import figure
from tools.cli.command_line import Command, make_parser, run, same_file
from tools.cli.data_options import report_litter
from tools.cli.job_options import Options, force
from tools.cli.option_values import number
from tools.cli.options import OTHER, option
from tools.cli.said import say
from transforms.files.output_file import GENERATED, check_writable, write_text

if TYPE_CHECKING:
    from transforms.compare.compare_results import Comparison

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
Equal arrays have a psnr and sqnr of inf, and so does a mean over files of which one is equal. Files with NaN
or infinite elements are counted, excluded from mean and worst values, and set exit code 1. In JSON, inf is
the string "inf" and an excluded value is null; in CSV, "inf" and empty. Files of integers beside files of
other numbers, such as class numbers beside boxes, have a line and do not enter mean and worst values."""

_SHOWN = 20
"""Number of files with a line on the screen: the worst by SQNR, if there are more."""

_COLUMNS = ("cosine", "l2", "psnr", "ssim", "sqnr")
_HEADINGS = ("cos similarity", "l2 distance", "psnr dB", "ssim", "sqnr dB", "NaN or inf")


@dataclass(frozen=True, kw_only=True)
class EvaluateJob(Options):
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
        "--tokens DIR",
        "folder of the samples that the results belong to, with input_ids: report perplexity",
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    return run(command(), _evaluate, argv)


def command() -> Command[EvaluateJob]:
    """Return the command line of the tool."""
    return Command(make_parser("evaluate", EvaluateJob, __doc__, _COMMANDS, _DETAILS), EvaluateJob, _why_not)


def _why_not(job: EvaluateJob) -> str | None:
    return same_file({"--json": job.json, "--csv": job.csv})


def _evaluate(job: EvaluateJob) -> None:
    compare_folders(job)


def compare_folders(job: EvaluateJob) -> dict[str, Any]:
    """Compare results, say the figures, and return them as ``--json`` writes them.

    Raises ValueError for results with NaN or infinite elements, or beyond a limit, after all is said and
    written.
    """
    from transforms.compare import compare_results
    from transforms.compare.language import compare_logits, compare_tokens
    from transforms.compare.step_errors import step_sqnr
    from transforms.run.array_files import read_array
    from transforms.search.target import TargetError

    # pair the files; tokens that were written are compared by themselves
    for path in filter(None, (job.json, job.csv)):
        check_writable(path, force=job.force, inputs=[job.labels])
    pairs = compare_results.pair_files(
        job.baseline_results_folder, job.quantized_results_folder, allow_missing=job.allow_missing
    )
    written = [pair for pair in pairs if pair.output == GENERATED]
    pairs = [pair for pair in pairs if pair.output != GENERATED]
    if job.min_greedy is not None and not written:
        raise ValueError(f"--min-greedy: there are no results in '{GENERATED}'")
    folders = job.baseline_results_folder, job.quantized_results_folder
    report_litter(*(each for folder in folders for each in compare_results.result_folders(folder)))
    # measure
    labels = read_array(job.labels) if job.labels else None
    with Progress("comparing", "file") as bar:
        compared = compare_results.compare(pairs, job.peak, job.logits)
        comparisons = list(bar.each(compared, len(pairs)))
    top1 = None if labels is None else compare_results.top1(pairs, labels)
    greedy = compare_tokens(written) if written else None
    language = None if job.logits is None else compare_logits(pairs, job.logits, job.tokens)
    counted = [
        comparison
        for comparison in comparisons
        if job.logits is None or comparison.output in ("", job.logits)
    ]
    # print, write, and judge by the limits last, when all is there to be read
    if counted:
        _print_files(counted)
        _print_summary(counted)
        _print_outputs(comparisons)
    steps = step_sqnr(pairs)
    for line in step_lines(steps):
        say(line)
    if top1:
        say(f"Top1 baseline: {top1.baseline:.6g}\nTop1 quantized: {top1.quantized:.6g}")
        say(f"Top1 agreement: {top1.agreement:.6g} of {top1.count} rows")
    for line in (*language_lines(language), *greedy_lines(greedy)):
        say(line)
    content = as_json(comparisons, counted, steps, top1, language, greedy)
    if job.json:
        write_text(job.json, json.dumps(content, indent=2, allow_nan=False) + "\n")
    if job.csv:
        write_text(job.csv, as_csv(comparisons))
    _refuse_non_finite(comparisons)
    limits = {"max_kl": job.max_kl, "max_perplexity": job.max_perplexity, "min_same": job.min_same}
    if lines := [*missed({**limits, "min_greedy": job.min_greedy}, language, greedy)]:
        raise TargetError("; ".join(lines))
    return content


def _print_files(comparisons: Sequence[Comparison]) -> None:
    """A table with one line per file, the files with NaN first, then by rising SQNR if there are too many."""
    shown = list(comparisons)
    if len(shown) > _SHOWN:
        shown = sorted(shown, key=lambda one: one.sqnr if one.is_finite else -math.inf)[:_SHOWN]
        say(f"The {_SHOWN} files of lowest sqnr, of {len(comparisons)} (--csv writes all):")
    names = [full_name(one) for one in shown]
    width = max(map(len, (*names, "file")))
    say(f"{'file':<{width}}" + "".join(f"{heading:>16}" for heading in _HEADINGS))
    for name, one in zip(names, shown, strict=True):
        cells = [*(figure(getattr(one, column), 6) for column in _COLUMNS), _count_non_finite(one)]
        say(f"{name:<{width}}" + "".join(f"{cell:>16}" for cell in cells))
    say("")


def _print_summary(comparisons: Sequence[Comparison]) -> None:
    from transforms.compare.compare_results import METRICS, summarize

    summary = summarize(comparisons)
    for metric in METRICS:
        mean, worst = summary.mean[metric.field], summary.worst[metric.field]
        if mean is None or worst is None:
            reason = _why_left_out(comparisons, metric.field)
            say(f"Mean {metric.label}: {reason}\n{metric.worst_word} {metric.label}: {reason}")
        else:
            say(f"Mean {metric.label}: {mean:.9g}\n{metric.worst_word} {metric.label}: {worst:.9g}")
    say(f"Files: {len(comparisons)}, identical: {sum(comparison.is_identical for comparison in comparisons)}")
    integers = [comparison for comparison in comparisons if comparison.has_integers]
    if 0 < len(integers) < len(comparisons):
        same = sum(comparison.is_identical for comparison in integers)
        say(f"Not in mean and worst values: {len(integers)} files of integers, identical: {same}")
    with_ssim = sum(comparison.ssim is not None for comparison in comparisons)
    if 0 < with_ssim < len(comparisons):
        say(f"Ssim of {with_ssim} files; the others: {_why_left_out(comparisons, 'ssim')}")


def _why_left_out(comparisons: Sequence[Comparison], field: str) -> str:
    reasons = [one.why_no_ssim for one in comparisons if one.why_no_ssim]
    if field == "ssim" and reasons:
        return f"left out ({reasons[0]})"
    return "left out (NaN or infinite elements)"


def _print_outputs(comparisons: Sequence[Comparison]) -> None:
    """One line per output of the model, if there are several."""
    outputs = by_output(comparisons)
    if len(outputs) < 2:
        return
    say("Mean of each output:")
    width = max(map(len, outputs))
    for output, members in outputs.items():
        mean = figures(members)["mean"]
        cells = "".join(f"  {column} {figure(mean[column], 6)}" for column in _COLUMNS)
        say(f"  {output:<{width}}{cells}")


def _refuse_non_finite(comparisons: Sequence[Comparison]) -> None:
    bad = [one for one in comparisons if not one.is_finite]
    if bad:
        sides = [sum(getattr(one, f"{side}_non_finite") for one in bad) for side in ("baseline", "quantized")]
        raise ValueError(
            f"NaN or infinite elements in {len(bad)} of {len(comparisons)} files, "
            f"first '{full_name(bad[0])}': {sides[0]} in the baseline, {sides[1]} in the quantized results"
        )


def _count_non_finite(one: Comparison) -> str:
    return "-" if one.is_finite else f"{one.baseline_non_finite} | {one.quantized_non_finite}"


if __name__ == "__main__":
    sys.exit(main())
