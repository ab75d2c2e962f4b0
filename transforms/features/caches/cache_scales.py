"""Scales of caches, measured on samples for each head and channel of keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ops.array_types import Feed, Float32Array, Float64Array
from ops.formats import get_format
from ops.integers import ALPHAS, range_scale
from ops.squared_errors import squared_errors
from transforms.run.kept_runs import KeptRuns
from transforms.runtime.session import OpenModel

CacheModel = OpenModel | KeptRuns

MARGIN = 1.25
"""Factor on the largest magnitude of each channel in 8 bits: headroom for texts outside the samples.

On SmolLM2-135M with GroupQueryAttention and 16 samples the KL divergence of other texts is 0.0015 nats
without a margin, 0.0009 with 1.15, 0.0008 with 1.25 and 0.0011 with 1.5; with 4 samples 0.0043 without and
0.0013 with 1.25. Samples continued by 64 tokens of the model do as well, in twenty times the time. Caches
made by a Concat, whose scales are coarser, have 0.0013 with and without.
"""


def cache_scales(
    model: CacheModel,
    axes: Mapping[str, Sequence[int]],
    feeds: Sequence[Feed],
    *,
    bits: int = 8,
    offsets: Mapping[str, Float32Array] | None = None,
    fed: Mapping[str, str] | None = None,
) -> dict[str, Float32Array]:
    """Return the scale of each channel of a float model's caches, by name of the output.

    ``axes``: by name of the output, the axes along which scales differ, which are the axes of the result:
    [heads, channels], for example. In 8 bits the largest level is ``MARGIN`` times the largest magnitude on
    the samples; a channel of zeros gets the mean of the other channels, since other texts may fill it. In 4
    bits the scale is the one of least squared error, which takes a second pass over the samples.
    ``offsets``: subtracted from caches before they are measured, with the axes of the result. ``fed``: the
    inputs that feed some caches; their values in the samples count too. Raises ValueError for samples that
    leave all caches empty, and for a cache that is not finite.
    """
    largest: dict[str, Float32Array] = {}
    for feed in feeds:
        taken = {
            name: np.asarray(feed[past], np.float32) for name, past in (fed or {}).items() if past in feed
        }
        for name, array in (*taken.items(), *_caches(model, axes, feed, offsets or {})):
            if array.size:
                reduced_axes = tuple(axis for axis in range(array.ndim) if axis not in axes[name])
                maxima = np.abs(array).max(reduced_axes).astype(np.float32)
                largest[name] = np.maximum(largest.get(name, maxima), maxima)
    if infinite := [name for name, maxima in largest.items() if not np.isfinite(maxima).all()]:
        raise ValueError(f"cache '{infinite[0]}' has no range: it is not finite on the samples")
    if missing := [name for name in axes if name not in largest]:
        raise ValueError(f"cache '{missing[0]}' has no range: it is empty on all samples")
    margin = MARGIN if bits == 8 else 1
    scales = {
        name: range_scale(0, margin * _filled(maxima), f"int{bits}", symmetric=True)[0]
        for name, maxima in largest.items()
    }
    return scales if bits == 8 else _of_least_error(model, scales, axes, feeds, bits, offsets or {})


def first_tokens(
    model: CacheModel, axes: Mapping[str, Sequence[int]], feeds: Sequence[Feed], tokens: int
) -> dict[str, Float32Array]:
    """Return the mean of the first token of each cache along the axis ``tokens``, to be used as offsets.

    Most heads give the first token a large share of each sum (arXiv 2309.17453), and its values are small
    and alike: less their mean they round to 0. On SmolLM2-135M the divergence of values in 4 bits is 0.020
    nats with this offset, 0.048 without, 0.052 with the mean of all tokens.
    """
    sums: dict[str, Float32Array] = {}
    counts = dict.fromkeys(axes, 0)
    for feed in feeds:
        for name, array in _caches(model, axes, feed, {}):
            if array.size:
                first = np.take(array, [0], tokens)
                sample_sum = first.sum(tuple(axis for axis in range(first.ndim) if axis not in axes[name]))
                sums[name], counts[name] = sums.get(name, 0) + sample_sum, counts[name] + len(first)
    return {name: (total / counts[name]).astype(np.float32) for name, total in sums.items()}


def _caches(
    model: CacheModel,
    axes: Mapping[str, Sequence[int]],
    feed: Feed,
    offsets: Mapping[str, Float32Array],
) -> Iterator[tuple[str, Float32Array]]:
    """Yield the caches of a sample in float32, less their offsets."""
    names = [name for name in axes if name in model.outputs]
    for name, array in model.run(feed, names).items() if names else ():
        numbers = array.astype(np.float32)
        if name in offsets:
            missing_axes = [axis for axis in range(array.ndim) if axis not in axes[name]]
            numbers -= np.expand_dims(offsets[name], missing_axes)
        yield name, numbers


def _filled(largest: Float32Array) -> Float32Array:
    """Return magnitudes of channels in which zeros are replaced by the mean of the other channels."""
    positive = largest[largest > 0]
    return np.where(largest > 0, largest, positive.mean() if positive.size else 0)


def _of_least_error(
    model: CacheModel,
    scales: Mapping[str, Float32Array],
    axes: Mapping[str, Sequence[int]],
    feeds: Sequence[Feed],
    bits: int,
    offsets: Mapping[str, Float32Array],
) -> dict[str, Float32Array]:
    """Return scales times the factor of ``ALPHAS`` that rounds each cache with the least squared error.

    Divergence in nats: 0.082; without this choice 0.117; 0.095 with 0.8 for all; 0.087 with 1.12 times these
    scales; 0.051 less :func:`first_tokens`.
    """
    fmt = get_format(f"int{bits}")
    tried = {name: ALPHAS.astype(np.float32)[:, None] * scale.reshape(-1) for name, scale in scales.items()}
    errors: dict[str, Float64Array] = {name: np.zeros(candidates.shape) for name, candidates in tried.items()}
    for feed in feeds:
        for name, array in _caches(model, axes, feed, offsets):
            if array.size:
                rows = np.moveaxis(array, axes[name], range(len(axes[name])))
                rows = rows.reshape(1, scales[name].size, -1)
                errors[name] += squared_errors(rows, tried[name], np.zeros(tried[name].shape), fmt)
    return {
        name: np.take_along_axis(candidates, errors[name].argmin(0)[None], 0).reshape(scales[name].shape)
        for name, candidates in tried.items()
    }
