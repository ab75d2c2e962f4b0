"""Samples that are made of others: they show what those leave open.

Errors of rounding differ from input to input, also between inputs that are nearly alike: the error on a
sample is known better if copies of it are measured, too. And images are often fitted into a frame, which
samples need not show: weights that were fitted to photographs alone made a detector lose 3 dB on photographs
with bars.

Weights that suit the samples may err more than before in directions that no sample takes, and inputs that
were not seen take some. Noise on the samples takes all of them. Of 221 tuned models of small networks 14 lost
on inputs that were not seen: no held-out sample showed that, and noise did for nine. In images noise hides
what large areas of one color show, such as sky or paper: rounding errs alike at all their pixels. Mosaics of
the samples have such areas, in colors of the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ops.array_types import AnyArray, Feed, Float64Array

_STEPS = (0.2, -0.2)
"""Of a copy along the difference of two other samples: it keeps what elements have in common."""

_MOST_CHANNELS, _LEAST_PIXELS = 4, 8
"""Of an image: at most so many channels, and at least so many rows and columns."""

_NOISE = (0.1, 0.3, 0.5)
"""Deviations of noise, of that of the input."""

_FEW = 10
"""Samples up to which each has a copy with all of them."""

_BAR = 3
"""A bar is one of so many parts of an image."""

_TILES, _LEAST_TILE = 8, 4
"""Of a mosaic: at most so many tiles in a row or column, of at least so many pixels each way."""


def varied(feeds: Sequence[Feed]) -> list[Feed]:
    """Return the samples, and then copies of all, if there are any, as often in the same order.

    A copy of a sample is a small step along the difference of the two after it, in inputs of finite floats
    that have the same shape, and within the range of all samples.
    """
    names = [name for name in feeds[0] if all(_is_finite(feed[name]) for feed in feeds)]
    if not names or len(feeds) < 2:
        return [*feeds]
    ends = {name: _ends([feed[name] for feed in feeds if feed[name].size]) for name in names}
    return [*feeds, *(_step(feeds, place, ends, step) for step in _STEPS for place in range(len(feeds)))]


def noisy(feeds: Sequence[Feed]) -> list[Feed]:
    """Return copies of the samples with normal noise on inputs of finite floats, and on images of bytes.

    There are no copies without such inputs. The deviation of the noise is a tenth, three tenths and a
    half of that of the numbers of the sample, and copies stay within the range of all samples: few samples
    have a copy with each, of many each has one in turn.
    """
    names = [name for name in feeds[0] if all(_takes_noise(feed[name]) for feed in feeds)] if feeds else []
    ends = {name: _ends([feed[name] for feed in feeds if feed[name].size]) for name in names}
    bounds = {name: pair for name, pair in ends.items() if pair and pair[0] < pair[1]}
    random, few = np.random.default_rng(0), len(feeds) <= _FEW

    def _made(feed: Feed, level: float) -> Feed:
        made = dict(feed)
        for name, pair in bounds.items():
            value = feed[name]
            size = value.std(dtype=np.float64) if value.size else 0.0
            noise = level * size * random.standard_normal(value.shape)
            made[name] = _as_pixels(np.clip(value + noise, *pair), value)
        return made

    levels = [_NOISE if few else (_NOISE[place % len(_NOISE)],) for place in range(len(feeds))]
    pairs = zip(feeds, levels, strict=True) if bounds else ()
    return [_made(feed, level) for feed, own in pairs for level in own]


def _is_finite(value: AnyArray) -> bool:
    return bool(np.asarray(value).dtype.kind == "f" and np.isfinite(value).all())


def _takes_noise(value: AnyArray) -> bool:
    return _is_finite(value) or _image_sides(value) is not None


def _image_sides(value: AnyArray) -> tuple[int, int] | None:
    """Return the axes of rows and columns of an image of finite numbers."""
    sides = _sides(value)
    return sides if sides and np.isfinite(value).all() else None


def _ends(values: Sequence[AnyArray]) -> tuple[Any, Any] | None:
    """Return the lowest and the highest of all numbers; None if there are none."""
    return (min(one.min() for one in values), max(one.max() for one in values)) if values else None


def _step(feeds: Sequence[Feed], place: int, ends: Mapping[str, tuple[Any, Any] | None], step: float) -> Feed:
    own, one, two = (feeds[(place + k) % len(feeds)] for k in range(3))
    made = dict(own)
    for name, bounds in ends.items():
        start, first, second = own[name], one[name], two[name]
        if bounds and start.shape == first.shape == second.shape:
            moved = start + start.dtype.type(step) * (first - second)
            made[name] = np.asarray(np.clip(moved, *bounds))  # of one number, NumPy makes no array
    return made


def with_bars(feeds: Sequence[Feed]) -> list[Feed]:
    """Return the samples with a bar of the mean color in every other image, at the bottom or on the right.

    Images are inputs of floats or bytes [B, C, H, W] or [B, H, W, C]. A model that takes several at once, as
    a tracker does, compares parts of pictures: those are cut out, not fitted in.
    """
    if not feeds or sum(_sides(value) is not None for value in feeds[0].values()) != 1:
        return [*feeds]
    return [feed if place % 2 else _with_bar(feed, place // 2 % 2) for place, feed in enumerate(feeds)]


def mosaics(feeds: Sequence[Feed]) -> list[Feed]:
    """Return copies of the samples whose images are mosaics: each pixel has the mean color of its tile.

    Images are inputs as in :func:`with_bars`, of finite numbers; samples without one have no copy.
    """
    made = [
        {name: _mosaic(value, sides) for name, value in feed.items() if (sides := _image_sides(value))}
        for feed in feeds
    ]
    return [{**feed, **images} for feed, images in zip(feeds, made, strict=True) if images]


def _mosaic(value: AnyArray, sides: tuple[int, int]) -> AnyArray:
    means = value.astype(np.float64)
    for axis in sides:
        size = value.shape[axis]
        starts = np.arange(0, size, max(_LEAST_TILE, -(-size // _TILES)))
        counts = np.diff(starts, append=size)
        means = np.repeat(np.add.reduceat(means, starts, axis) / _along(axis, counts), counts, axis)
    return _as_pixels(means, value)


def _along(axis: int, values: AnyArray) -> AnyArray:
    """Return values that lie along an axis of an image."""
    return values.reshape([-1 if i == axis else 1 for i in range(4)])


def _as_pixels(color: Float64Array, value: AnyArray) -> AnyArray:
    return np.asarray(color if value.dtype.kind == "f" else np.rint(color), value.dtype)


def _with_bar(feed: Feed, side: int) -> Feed:
    made = dict(feed)
    for name, value in feed.items():
        sides = _sides(value)
        if sides is None:
            continue
        color = _as_pixels(value.mean(sides, np.float64, keepdims=True), value)
        size, axis = value.shape[sides[side]], sides[side]
        is_bar = _along(axis, np.arange(size) >= size - size // _BAR)
        made[name] = np.where(is_bar, color, value)
    return made


def _sides(value: AnyArray) -> tuple[int, int] | None:
    """Return the axes of rows and columns of an image; None for another input."""
    if value.ndim != 4 or not (value.dtype.kind == "f" or value.dtype == np.uint8):
        return None
    for channels, sides in ((1, (2, 3)), (3, (1, 2))):
        if value.shape[channels] <= _MOST_CHANNELS:
            is_large = min(value.shape[side] for side in sides) >= _LEAST_PIXELS
            return sides if is_large else None
    return None
