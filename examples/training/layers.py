"""The layers of a small convolutional network in NumPy, each returning its output and its backward pass.

Images are ``[batch, channel, row, column]`` arrays of one float type, which every result shares. A backward
pass takes the gradient of the loss with respect to the layer's output and returns those with respect to
the layer's arguments, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Backward = Callable[[Array], tuple[Array, ...]]
Layer = Callable[..., tuple[Array, Backward]]

SIDE = 3  # of a convolution's kernel


def convolve(x: Array, weight: Array) -> tuple[Array, Backward]:
    """Correlate with ``weight`` ``[out, in, 3, 3]``; zero padding of one keeps the image's size."""
    flat = weight.reshape(len(weight), -1)
    mirrored = weight[:, :, ::-1, ::-1].swapaxes(0, 1).reshape(weight.shape[1], -1)

    def backward(dy: Array) -> tuple[Array, ...]:
        slopes = dy.reshape(*dy.shape[:2], -1)
        dweight = sum(slope @ patches.T for slope, patches in zip(slopes, _patches(x), strict=True))
        dx = np.stack([mirrored @ patches for patches in _patches(dy)])
        return dx.reshape(x.shape), dweight.reshape(weight.shape)

    y = np.stack([flat @ patches for patches in _patches(x)])
    return y.reshape(len(x), -1, *x.shape[2:]), backward


def _patches(x: Array) -> Iterator[Array]:
    """Yield ``[channel * 9, row * column]`` of each image: small enough for a cache."""
    _, channels, rows, columns = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.empty((channels, SIDE, SIDE, rows, columns), x.dtype)
    for image in padded:
        for i, j in np.ndindex(SIDE, SIDE):
            patches[:, i, j] = image[:, i : i + rows, j : j + columns]
        yield patches.reshape(channels * SIDE**2, rows * columns)


def add_bias(x: Array, bias: Array) -> tuple[Array, Backward]:
    """Add ``bias`` ``[channel]`` to each channel."""

    def backward(dy: Array) -> tuple[Array, ...]:
        return dy, dy.sum(axis=(0, 2, 3))

    return x + bias[:, None, None], backward


def batch_statistics(x: Array) -> tuple[Array, Array]:
    """Return each channel's mean and variance over the batch and the image."""
    return x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))


def normalize(
    x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float
) -> tuple[Array, Backward]:
    """Normalize each channel; the backward pass takes the statistics for those of ``x`` itself."""
    deviation = np.sqrt(variance + epsilon)[:, None, None]
    unit = (x - mean[:, None, None]) / deviation

    def backward(dy: Array) -> tuple[Array, ...]:
        dbias, dscale = dy.sum(axis=(0, 2, 3)), (dy * unit).sum(axis=(0, 2, 3))
        count = dy.size // len(scale)
        centred = dy - (dbias[:, None, None] + unit * dscale[:, None, None]) / count
        return scale[:, None, None] / deviation * centred, dscale, dbias

    return scale[:, None, None] * unit + bias[:, None, None], backward


def rectify(x: Array) -> tuple[Array, Backward]:
    """Replace negative values by zero."""

    def backward(dy: Array) -> tuple[Array, ...]:
        return (np.where(x > 0, dy, 0),)

    return np.maximum(x, 0), backward


def max_pool(x: Array) -> tuple[Array, Backward]:
    """Take the greatest value of each 2x2 square; equal ones share the gradient."""
    batch, channels, rows, columns = x.shape
    squares = x.reshape(batch, channels, rows // 2, 2, columns // 2, 2)
    greatest = squares.max(axis=(3, 5), keepdims=True)

    def backward(dy: Array) -> tuple[Array, ...]:
        chosen = squares == greatest
        share = dy.reshape(greatest.shape) / chosen.sum(axis=(3, 5), keepdims=True)
        return ((chosen * share).astype(x.dtype).reshape(x.shape),)

    return greatest.reshape(batch, channels, rows // 2, columns // 2), backward


def every_second(x: Array) -> tuple[Array, Backward]:
    """Keep every second row and column, from the first on: a convolution of stride 2, after it."""

    def backward(dy: Array) -> tuple[Array, ...]:
        dx = np.zeros_like(x)
        dx[:, :, ::2, ::2] = dy
        return (dx,)

    return x[:, :, ::2, ::2], backward


def mean_pool(x: Array, side: int) -> tuple[Array, Backward]:
    """Take the mean of each square of ``side`` rows and columns."""
    batch, channels, rows, columns = x.shape
    squares = x.reshape(batch, channels, rows // side, side, columns // side, side)

    def backward(dy: Array) -> tuple[Array, ...]:
        return ((dy / x.dtype.type(side**2)).repeat(side, axis=2).repeat(side, axis=3),)

    return squares.mean(axis=(3, 5)), backward


def connect(x: Array, weight: Array, bias: Array) -> tuple[Array, Backward]:
    """Flatten each image and map it by ``weight`` ``[out, in]`` and ``bias`` ``[out]``."""
    flat = x.reshape(len(x), -1)

    def backward(dy: Array) -> tuple[Array, ...]:
        return (dy @ weight).reshape(x.shape), dy.T @ flat, dy.sum(axis=0)

    return flat @ weight.T + bias, backward


def cross_entropy(
    logits: Array, labels: NDArray[np.integer], *, smoothing: float = 0.0
) -> tuple[float, Array]:
    """Return the mean cross-entropy of softmax with the labels, and its gradient.

    ``smoothing``: the share of the target that is spread over all classes (arXiv 1512.00567, section 7).
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    likelihood = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    target = np.full_like(logits, smoothing / logits.shape[1])
    target[np.arange(len(labels)), labels] += 1 - smoothing
    loss = -float((target * likelihood).sum(axis=1).mean())
    return loss, (np.exp(likelihood) - target) / len(labels)
