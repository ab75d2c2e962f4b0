"""Metrics of a result against a baseline: cosine similarity, L2 distance, PSNR, SSIM and SQNR of arrays.

Every metric takes two arrays with one shape, any rank and any real type, and accumulates in float64 over
blocks that stay in the processor's cache, so that no temporary of the arrays' size is needed. They share
``Sums``, which also accumulates over many arrays, for statistics of a tensor over a whole data set.

NaN and infinities: an array that holds any makes its metrics NaN; ``Sums.non_finite`` counts them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ops.subnormals import keeps_subnormals

_BLOCK = 8192
"""Elements per block: two float64 buffers of this length fit into a first- or second-level cache."""

SSIM_WINDOW = 7
"""Side of the sliding window of ``ssim``, in pixels; an image must be at least that high and wide."""

_CHANNELS = (1, 3, 4)


@dataclass
class Sums:
    """Running sums over pairs of arrays, from which every metric but SSIM follows.

    A few numbers for any amount of data: ``count`` elements, the sums of x^2, y^2, x*y and (x - y)^2, the
    largest |x| (``peak``), and how many elements of baseline x and other y are NaN or infinite.
    """

    count: int = 0
    baseline_energy: float = 0.0
    other_energy: float = 0.0
    product: float = 0.0
    error_energy: float = 0.0
    peak: float = 0.0
    baseline_non_finite: int = 0
    other_non_finite: int = 0

    @keeps_subnormals
    def add(self, baseline: ArrayLike, other: ArrayLike) -> None:
        """Add the elements of two arrays of equal shape (any rank, memory layout and real type).

        Raises:
            ValueError: the shapes differ, or the elements are not real numbers.

        """
        x, y = _flat_pair(baseline, other)
        buffers = np.empty(min(_BLOCK, x.size)), np.empty(min(_BLOCK, x.size))
        with np.errstate(all="ignore"):
            for start in range(0, x.size, _BLOCK):
                length = min(_BLOCK, x.size - start)
                self._add_block(
                    x[start : start + length],
                    y[start : start + length],
                    *(buffer[:length] for buffer in buffers),
                )

    def _add_block(self, x: NDArray, y: NDArray, wide_x: NDArray, wide_y: NDArray) -> None:
        np.copyto(wide_x, x)
        np.copyto(wide_y, y)
        energies = float(wide_x @ wide_x), float(wide_y @ wide_y)
        if not math.isfinite(sum(energies)):
            self.baseline_non_finite += _count_non_finite(wide_x)
            self.other_non_finite += _count_non_finite(wide_y)
        self.count += x.size
        self.baseline_energy += energies[0]
        self.other_energy += energies[1]
        self.product += float(wide_x @ wide_y)
        self.peak = max(self.peak, float(wide_x.max()), -float(wide_x.min()))
        np.subtract(wide_x, wide_y, out=wide_y)
        self.error_energy += float(wide_y @ wide_y)

    @property
    def non_finite(self) -> int:
        """Number of elements that are NaN or infinite, in both arrays together."""
        return self.baseline_non_finite + self.other_non_finite

    @keeps_subnormals
    def cosine(self) -> float:
        """Return x.y / (|x| |y|), in -1..1; 1 if both are zero throughout, 0 if only one is."""
        if self.non_finite:
            return math.nan
        if self.error_energy == 0:
            return 1.0
        norms = math.sqrt(self.baseline_energy) * math.sqrt(self.other_energy)
        return max(-1.0, min(1.0, self.product / norms)) if norms else 0.0

    @keeps_subnormals
    def l2(self) -> float:
        """Return the Euclidean length of x - y, in the unit of the data."""
        return math.nan if self.non_finite else math.sqrt(self.error_energy)

    @keeps_subnormals
    def psnr(self, peak: float | None = None) -> float:
        """Return 10 log10(peak^2 / mean((x - y)^2)) in dB; ``peak`` is the largest |x| unless given."""
        peak = self.peak if peak is None else peak
        return self._decibels(peak * peak * self.count)

    @keeps_subnormals
    def sqnr(self) -> float:
        """Return 10 log10(sum x^2 / sum (x - y)^2) in dB."""
        return self._decibels(self.baseline_energy)

    def _decibels(self, signal: float) -> float:
        return math.nan if self.non_finite else decibels(self.error_energy, signal)


def decibels(error: float, power: float = 1.0) -> float:
    """Return 10 log10(power / error): inf without an error, -inf for an error without power, or for NaN."""
    if error == 0:
        return math.inf
    return 10 * (math.log10(power) - math.log10(error)) if power and not math.isnan(error) else -math.inf


def in_decibels(error: float) -> str:
    """Return an error relative to the power as text, in dB."""
    return f"{decibels(error):.1f}"


def sums(baseline: ArrayLike, other: ArrayLike) -> Sums:
    """Return the ``Sums`` of one pair of arrays; ValueError if their shapes differ."""
    result = Sums()
    result.add(baseline, other)
    return result


def total(parts: Iterable[Sums]) -> Sums:
    """Return the ``Sums`` over all pairs of arrays of some ``Sums``."""
    result = Sums()
    for part in parts:
        for name in (field.name for field in fields(Sums) if field.name != "peak"):
            setattr(result, name, getattr(result, name) + getattr(part, name))
        result.peak = max(result.peak, part.peak)
    return result


def sums_of_numbers(baseline: ArrayLike, other: ArrayLike) -> Sums:
    """Return the ``Sums`` of the elements that are finite in the baseline.

    Non-finite baseline elements have no error. ValueError if the shapes differ.
    """
    all_sums = sums(baseline, other)
    if not all_sums.baseline_non_finite:
        return all_sums
    x, y = _flat_pair(baseline, other)
    numbers = np.isfinite(x)
    return sums(x[numbers], y[numbers])


def cosine(baseline: ArrayLike, other: ArrayLike) -> float:
    """Return the cosine of the angle between two arrays of one shape, taken as vectors.

    x.y / (|x| |y|), without unit, in -1..1. Two arrays of zeros (and two empty ones) are
    equal: 1; zeros against anything else: 0. NaN if an element is NaN or infinite.
    """
    return sums(baseline, other).cosine()


def l2(baseline: ArrayLike, other: ArrayLike) -> float:
    """Return the L2 distance sqrt(sum((x - y)^2)) of two arrays of one shape, in the unit of the data.

    Not divided by the number of elements. 0 for equal or empty arrays, NaN if an element is NaN or infinite.
    """
    return sums(baseline, other).l2()


def psnr(baseline: ArrayLike, other: ArrayLike, peak: float | None = None) -> float:
    """Return the peak signal-to-noise ratio 10 log10(peak^2 / mean((x - y)^2)) in dB; one shape, any rank.

    ``peak`` is the largest value that the signal can take: by default 255 for arrays of type uint8 (8-bit
    images) and the largest |x| of the baseline otherwise. inf for equal arrays, -inf for different
    arrays with peak 0, NaN if an element is NaN or infinite.
    """
    return sums(baseline, other).psnr(default_peak(baseline) if peak is None else peak)


def sqnr(baseline: ArrayLike, other: ArrayLike) -> float:
    """Return the signal-to-quantization-noise ratio 10 log10(sum(x^2) / sum((x - y)^2)), in dB.

    inf for equal arrays, -inf for an error on a baseline of zeros, NaN if an element is NaN or infinite.
    """
    return sums(baseline, other).sqnr()


def without_row_means(arrays: Mapping[str, NDArray[Any]], logits: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return arrays in which those named ``logits`` are :func:`row_centred`."""
    return {name: row_centred(array) if name in logits else array for name, array in arrays.items()}


def row_centred(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array without the mean of each row, along the last axis, which Softmax cancels.

    It has at least float32 precision. Infinities, for excluded classes, are left out of the mean.
    """
    wide = array.astype(np.promote_types(array.dtype, np.float32), copy=False)
    finite = np.isfinite(wide)
    mean = wide.mean(-1, keepdims=True) if finite.all() else wide.mean(-1, keepdims=True, where=finite)
    return np.asarray(wide - mean)


def default_peak(baseline: ArrayLike) -> float | None:
    """Return 255 for uint8 arrays (8-bit images), else None: the largest magnitude is used."""
    return 255.0 if np.asarray(baseline).dtype == np.uint8 else None


def why_no_ssim(shape: tuple[int, ...]) -> str:
    """Return why an array with this shape is not an image, "" if it is one.

    Images: [H, W]; [C, H, W] and [H, W, C] with 1, 3 or 4 channels; batches [N, C, H, W] and [N, H, W, C] of
    them; H and W at least ``SSIM_WINDOW``.
    """
    planes = _plane_axes(shape)
    if planes is None:
        return f"shape {list(shape)} is not that of an image"
    small = min(shape[axis] for axis in planes)
    return f"shape {list(shape)} is smaller than the window of {SSIM_WINDOW}" if small < SSIM_WINDOW else ""


@keeps_subnormals
def ssim(baseline: ArrayLike, other: ArrayLike, peak: float | None = None) -> float:
    """Return the mean structural similarity of two images or batches of images, -1..1, 1 for equal ones.

    scikit-image's ``structural_similarity`` with its defaults (uniform window of 7 x 7, K1 = 0.01, K2 = 0.03,
    sample covariance: Wang et al. 2004, doi 10.1109/TIP.2003.819861), channel by channel, mean over channels
    and images. ``peak`` is its data range L, by default that of ``psnr``.

    Raises:
        ValueError: the shapes differ or are not those of images (``why_no_ssim`` says so beforehand).
        ModuleNotFoundError: scikit-image is not installed.

    NaN if an element is NaN or infinite.

    """
    x, y = np.asarray(baseline), np.asarray(other)
    totals = sums(x, y)
    if reason := why_no_ssim(x.shape):
        raise ValueError(f"no SSIM: {reason}")
    if totals.non_finite:
        return math.nan
    if totals.error_energy == 0:
        return 1.0
    peak = default_peak(x) or totals.peak if peak is None else peak
    return _mean_over_planes(x, y, peak) if peak else math.nan


def _mean_over_planes(x: NDArray, y: NDArray, peak: float) -> float:
    from skimage.metrics import structural_similarity

    axes = _plane_axes(x.shape)
    assert axes is not None
    planes = [_planes(image, axes) for image in (x, y)]
    values = [structural_similarity(a, b, data_range=peak) for a, b in zip(*planes, strict=True)]
    return float(np.mean(values))


def _planes(image: NDArray, axes: tuple[int, int]) -> NDArray:
    """Return the channels of all images in sequence, [n, H, W], in a dtype that scikit-image supports."""
    supported = image if image.dtype.kind in "iuf" else image.astype(np.float32)
    return np.moveaxis(supported, axes, (-2, -1)).reshape(-1, *(image.shape[axis] for axis in axes))


def _plane_axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the axes of height and width, None if the shape is not that of an image."""
    rank = len(shape)
    if rank == 2:
        return 0, 1
    if rank not in (3, 4):
        return None
    if shape[-3] in _CHANNELS:
        return rank - 2, rank - 1
    return (rank - 3, rank - 2) if shape[-1] in _CHANNELS else None


def _flat_pair(baseline: ArrayLike, other: ArrayLike) -> tuple[NDArray, NDArray]:
    x, y = np.asarray(baseline), np.asarray(other)
    if x.shape != y.shape:
        raise ValueError(f"shapes differ: {list(x.shape)} in the baseline, {list(y.shape)} in the other")
    for array in (x, y):
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise ValueError(f"elements of type {array.dtype} are not real numbers")
    return x.reshape(-1), y.reshape(-1)


def _count_non_finite(x: NDArray) -> int:
    return int(x.size - np.count_nonzero(np.isfinite(x)))
