"""Compare two folders of results file by file, and summarize."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ops import metrics
from transforms.files.spelling import spelled
from transforms.run.array_files import find_files, is_litter, natural_order, read_array

_SHOWN = 3
"""Number of file names in an error."""


@dataclass(frozen=True)
class ResultMetric:
    """A metric: the name of its field in ``Comparison``, its label, and how its worst value is found."""

    field: str
    label: str
    worst_word: str
    worst: Callable[[Iterable[float]], float]


METRICS = (
    ResultMetric("cosine", "cos similarity", "Min", min),
    ResultMetric("l2", "l2 distance", "Max", max),
    ResultMetric("psnr", "psnr", "Min", min),
    ResultMetric("ssim", "ssim", "Min", min),
    ResultMetric("sqnr", "sqnr", "Min", min),
)
"""All metrics, in the order of the lines that the evaluate tool prints."""


@dataclass(frozen=True)
class ResultPair:
    """Two files to compare; ``output`` is their sub-folder, "" for the folder itself."""

    name: str
    output: str
    baseline: Path
    quantized: Path

    def is_of(self, output: str) -> bool:
        """Return whether these are results of an output with this name, or of the only output."""
        return self.output in ("", output)


@dataclass(frozen=True)
class Comparison:
    """The metrics of one pair: NaN if an element is not finite, ``ssim`` None if it is left out.

    ``has_integers``: the baseline holds integers or booleans, such as class numbers. ``mismatch``: why the
    elements of the two do not correspond; no metric has a value then.
    """

    name: str
    output: str
    shape: tuple[int, ...]
    cosine: float
    l2: float
    psnr: float
    ssim: float | None
    sqnr: float
    why_no_ssim: str
    baseline_non_finite: int
    quantized_non_finite: int
    has_integers: bool = False
    mismatch: str = ""

    @property
    def is_finite(self) -> bool:
        """Whether no element of either array is NaN or infinite."""
        return not (self.baseline_non_finite or self.quantized_non_finite)

    @property
    def is_identical(self) -> bool:
        """Whether the two arrays are equal, element by element."""
        return self.l2 == 0


@dataclass(frozen=True)
class Summary:
    """Mean and worst value of each metric over the files that have it; None where no file has it."""

    mean: dict[str, float | None]
    worst: dict[str, float | None]


@dataclass(frozen=True)
class Top1:
    """Shares (0..1) of rows whose largest element is at the label, and at the same place in both results."""

    baseline: float
    quantized: float
    agreement: float
    count: int


def pair_files(baseline: Path, quantized: Path, *, allow_missing: bool = False) -> list[ResultPair]:
    """Return the pairs of files with the same name in two folders and their sub-folders, in natural order.

    A sub-folder holds the results of one output of a model. Raises FileNotFoundError for a missing or empty
    folder, ValueError if the folders hold different names, unless ``allow_missing`` (then the common ones
    are used, and there must be one).
    """
    left, right = _files_by_output(baseline), _files_by_output(quantized)
    for folder, files in ((baseline, left), (quantized, right)):
        if not files:
            raise FileNotFoundError(f"folder '{folder}' holds no .npy, .png or .jpg file")
    common = [key for key in left if key in right]
    if not allow_missing:
        _check_same(left.keys() - right.keys(), f"only in '{baseline}'")
        _check_same(right.keys() - left.keys(), f"only in '{quantized}'")
    if not common:
        raise ValueError(f"no file name is common to '{baseline}' and '{quantized}'")
    return [ResultPair(name, output, left[output, name], right[output, name]) for output, name in common]


def compare(
    pairs: Sequence[ResultPair], peak: float | None = None, logits: str | None = None
) -> Iterator[Comparison]:
    """Yield the comparison of each pair, in order; several threads read and compare.

    ``peak`` is that of PSNR and SSIM, see ``ops.metrics``. ``logits``: the output that is compared without
    the mean of each row. Raises ValueError naming the file if it cannot be read or compared.
    """
    executor = ThreadPoolExecutor(max_workers=os.cpu_count())
    try:
        yield from executor.map(lambda pair: compare_files(pair, peak, logits), pairs)
    finally:
        executor.shutdown(cancel_futures=True)


def compare_files(pair: ResultPair, peak: float | None = None, logits: str | None = None) -> Comparison:
    """Return the comparison of one pair of files."""
    x, y = read_array(pair.baseline), read_array(pair.quantized)
    are_logits = logits is not None and pair.is_of(logits)
    try:
        return compare_arrays(pair.name, pair.output, x, y, peak, are_logits=are_logits)
    except ValueError as error:
        raise ValueError(f"'{pair.quantized}' against '{pair.baseline}': {error}") from error


def compare_arrays(
    name: str,
    output: str,
    x: np.ndarray,
    y: np.ndarray,
    peak: float | None = None,
    *,
    are_logits: bool = False,
) -> Comparison:
    """Return the comparison of quantized y with baseline x; ValueError when their shapes differ.

    ``are_logits``: compare without the mean of each row, and without SSIM.
    """
    if are_logits and x.ndim and y.ndim:
        x, y = metrics.row_centred(x), metrics.row_centred(y)
    totals = metrics.sums(x, y)
    peak = metrics.default_peak(x) if peak is None else peak
    reason = "logits are not images" if are_logits else metrics.why_no_ssim(x.shape) or _why_no_library()
    if not reason and peak is None and totals.peak == 0 and totals.error_energy:
        reason = "the baseline is zero throughout and has no data range"
    return Comparison(
        name=name,
        output=output,
        shape=x.shape,
        cosine=totals.cosine(),
        l2=totals.l2(),
        psnr=totals.psnr(peak),
        ssim=None if reason else metrics.ssim(x, y, peak),
        sqnr=totals.sqnr(),
        why_no_ssim=reason,
        baseline_non_finite=totals.baseline_non_finite,
        quantized_non_finite=totals.other_non_finite,
        has_integers=x.dtype.kind in "iub",
    )


def without_metrics(name: str, output: str, shape: tuple[int, ...], mismatch: str) -> Comparison:
    """Return a comparison of results whose elements do not correspond."""
    nan = math.nan
    return Comparison(name, output, shape, nan, nan, nan, None, nan, mismatch, 0, 0, mismatch=mismatch)


def summarize(comparisons: Sequence[Comparison]) -> Summary:
    """Return mean and worst value of each metric over the comparisons in which it is defined.

    Integers are left out if there are other numbers: class numbers are equal, or have no distance. So are
    empty results, such as those of a picture without detections, if there are others.
    """
    comparisons = [comparison for comparison in comparisons if not comparison.has_integers] or comparisons
    comparisons = [comparison for comparison in comparisons if math.prod(comparison.shape)] or comparisons
    mean: dict[str, float | None] = {}
    worst: dict[str, float | None] = {}
    for metric in METRICS:
        values = [getattr(comparison, metric.field) for comparison in comparisons]
        defined = [value for value in values if value is not None and not math.isnan(value)]
        mean[metric.field] = sum(defined) / len(defined) if defined else None
        worst[metric.field] = metric.worst(defined) if defined else None
    return Summary(mean, worst)


def output_sqnr(comparisons: Sequence[Comparison]) -> list[tuple[str, float]]:
    """Return each output with its SQNR, averaged over samples in dB, the worst first.

    Samples with NaN are left out, and outputs of integers if there are others.
    """
    found = {
        output: summarize([one for one in comparisons if one.output == output]).mean["sqnr"]
        for output in dict.fromkeys(one.output for one in comparisons if not one.has_integers)
    }
    return sorted(((name, mean) for name, mean in found.items() if mean is not None), key=lambda one: one[1])


def top1(pairs: Sequence[ResultPair], labels: np.ndarray) -> Top1:
    """Return accuracy of both results and their agreement; labels [n] of integers.

    Each array holds scores over classes along its last axis; the rows of all files in order belong to the
    labels in order. Raises ValueError if their numbers differ or there is more than one output.
    """
    outputs = sorted({pair.output for pair in pairs})
    if len(outputs) > 1:
        raise ValueError(f"top-1 needs one output, the folders hold {len(outputs)}: {', '.join(outputs)}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers of shape [n], not {labels.dtype} {list(labels.shape)}")
    baseline = _winners([pair.baseline for pair in pairs])
    quantized = _winners([pair.quantized for pair in pairs])
    if not len(baseline) == len(quantized) == len(labels):
        raise ValueError(f"{len(labels)} labels for {len(baseline)} rows of results")
    return Top1(
        baseline=float(np.mean(baseline == labels)),
        quantized=float(np.mean(quantized == labels)),
        agreement=float(np.mean(baseline == quantized)),
        count=len(labels),
    )


def result_folders(folder: Path) -> list[Path]:
    """Return a folder of results, and its sub-folders for single outputs, in natural order.

    Raises OSError when it cannot be listed.
    """
    if not folder.exists():
        raise FileNotFoundError(f"folder '{folder}' does not exist")
    inner = [path for path in folder.iterdir() if path.is_dir() and not is_litter(path.name)]
    return [folder, *sorted(inner, key=lambda path: natural_order(path.name))]


def _files_by_output(folder: Path) -> dict[tuple[str, str], Path]:
    top, *inner = result_folders(folder)
    files = {("", name): path for name, path in find_files(top).items()}
    for one in inner:
        files |= {(one.name, name): path for name, path in find_files(one).items()}
    return files


def _check_same(missing: Iterable[tuple[str, str]], where: str) -> None:
    names = sorted(("/".join(filter(None, key)) for key in missing), key=natural_order)
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ValueError(
            f"{where}: {', '.join(names[:_SHOWN])}{more}; "
            + spelled("{allow_missing} compares the common ones")
        )


def _why_no_library() -> str:
    if importlib.util.find_spec("skimage"):
        return ""
    return "needs scikit-image: pip install 'onnx-narrow[evaluate]'"


def _winners(paths: Iterable[Path]) -> np.ndarray:
    winners = []
    for path in paths:
        scores = read_array(path)
        if scores.ndim == 0 or scores.size == 0:
            raise ValueError(f"'{path}' of shape {list(scores.shape)} holds no scores of classes")
        winners.append(scores.argmax(axis=-1).reshape(-1))
    return np.concatenate(winners)
