"""The tables of a comparison of results: files, mean and worst values, outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from onnx_narrow.summaries.result_files import by_output, figures, full_name
from onnx_narrow.summaries.words import figure
from transforms.compare.compare_results import METRICS, Comparison, Top1, summarize
from transforms.files.spelling import spelled

_SHOWN = 20
"""Number of files with a line on the screen: the worst by SQNR, if there are more."""

_COLUMNS = ("cosine", "l2", "psnr", "ssim", "sqnr")
_HEADINGS = ("cos similarity", "l2 distance", "psnr dB", "ssim", "sqnr dB", "NaN or inf")


def file_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a line for each file; if there are too many, those with NaN first, then by rising SQNR."""
    shown = list(comparisons)
    if len(shown) > _SHOWN:
        shown = sorted(shown, key=_rank)[:_SHOWN]
        yield f"The {_SHOWN} files of lowest sqnr, of {len(comparisons)} ({spelled('{csv}')} writes all):"
    names = [full_name(comparison) for comparison in shown]
    width = max(map(len, (*names, "file")))
    yield f"{'file':<{width}}" + "".join(f"{heading:>16}" for heading in _HEADINGS)
    for name, comparison in zip(names, shown, strict=True):
        cells = [figure(getattr(comparison, column), 6) for column in _COLUMNS]
        cells.append(_count_non_finite(comparison))
        yield f"{name:<{width}}" + "".join(f"{cell:>16}" for cell in cells)
    yield ""


def summary_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield mean and worst values, how many files there are, and which are left out of them."""
    summary = summarize(comparisons)
    for metric in METRICS:
        mean, worst = summary.mean[metric.field], summary.worst[metric.field]
        if mean is None or worst is None:
            words = (_why_left_out(comparisons, metric.field),) * 2
        else:
            words = f"{mean:.9g}", f"{worst:.9g}"
        yield f"Mean {metric.label}: {words[0]}"
        yield f"{metric.worst_word} {metric.label}: {words[1]}"
    identical = sum(comparison.is_identical for comparison in comparisons)
    yield f"Files: {len(comparisons)}, identical: {identical}"
    integers = [comparison for comparison in comparisons if comparison.has_integers]
    if 0 < len(integers) < len(comparisons):
        identical = sum(comparison.is_identical for comparison in integers)
        yield f"Not in mean and worst values: {len(integers)} files of integers, identical: {identical}"
    with_ssim = sum(comparison.ssim is not None for comparison in comparisons)
    if 0 < with_ssim < len(comparisons):
        yield f"Ssim of {with_ssim} files; the others: {_why_left_out(comparisons, 'ssim')}"


def output_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a line for each output of the model, if there are several."""
    outputs = by_output(comparisons)
    if len(outputs) < 2:
        return
    yield "Mean of each output:"
    width = max(map(len, outputs))
    for output, members in outputs.items():
        mean = figures(members)["mean"]
        cells = "".join(f"  {column} {figure(mean[column], 6)}" for column in _COLUMNS)
        yield f"  {output:<{width}}{cells}"


def top1_lines(top1: Top1 | None) -> Iterator[str]:
    """Yield the accuracy of both results and their agreement; nothing without labels."""
    if top1 is not None:
        yield f"Top1 baseline: {top1.baseline:.6g}"
        yield f"Top1 quantized: {top1.quantized:.6g}"
        yield f"Top1 agreement: {top1.agreement:.6g} of {top1.count} rows"


def _rank(comparison: Comparison) -> float:
    """Return the SQNR of a file, below that of all others where elements are NaN or infinite."""
    return comparison.sqnr if comparison.is_finite else -math.inf


def _why_left_out(comparisons: Sequence[Comparison], field: str) -> str:
    reasons = [comparison.why_no_ssim for comparison in comparisons if comparison.why_no_ssim]
    if field == "ssim" and reasons:
        return f"left out ({reasons[0]})"
    return "left out (NaN or infinite elements)"


def _count_non_finite(comparison: Comparison) -> str:
    if comparison.is_finite:
        return "-"
    return f"{comparison.baseline_non_finite} | {comparison.quantized_non_finite}"
