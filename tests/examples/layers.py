"""The layers of a small convolutional network in NumPy, each returning its output and its backward pass.

Images are ``[batch, channel, row, column]`` arrays of one float type, which every result shares. A backward
pass takes the gradient of the loss with respect to the layer's output and returns those with respect to
the layer's arguments, in their order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.floating]
Backward = Callable[[Array], tuple[Array, ...]]
Layer = Callable[..., tuple[Array, Backward]]

SIDE = 3  # of a convolution's kernel


def convolve(x: Array, weight: Array) -> tuple[Array, Backward]:
    """Correlate with ``weight`` ``[out, in, 3, 3]``; zero padding of one keeps the image's size."""
    patches = _patches(x)
    flat = weight.reshape(len(weight), -1)

    def backward(dy: Array) -> tuple[Array, ...]:
        dweight = np.tensordot(dy, patches, axes=((0, 2, 3), (0, 1, 2)))
        mirrored = weight[:, :, ::-1, ::-1].swapaxes(0, 1).reshape(weight.shape[1], -1)
        dx = _patches(dy) @ mirrored.T
        return dx.transpose(0, 3, 1, 2), dweight.reshape(weight.shape)

    return (patches @ flat.T).transpose(0, 3, 1, 2), backward


def _patches(x: Array) -> Array:
    """Return ``[batch, row, column, channel * 9]``: the neighbourhood of each pixel."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = sliding_window_view(padded, (SIDE, SIDE), axis=(2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(*x.shape[:1], *x.shape[2:], -1)


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


def connect(x: Array, weight: Array, bias: Array) -> tuple[Array, Backward]:
    """Flatten each image and map it by ``weight`` ``[out, in]`` and ``bias`` ``[out]``."""
    flat = x.reshape(len(x), -1)

    def backward(dy: Array) -> tuple[Array, ...]:
        return (dy @ weight).reshape(x.shape), dy.T @ flat, dy.sum(axis=0)

    return flat @ weight.T + bias, backward


def cross_entropy(logits: Array, labels: NDArray[np.integer]) -> tuple[float, Array]:
    """Return the mean negative log-likelihood of ``labels`` under softmax, and its gradient."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    likelihood = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    gradient = np.exp(likelihood)
    gradient[rows, labels] -= 1
    return -float(likelihood[rows, labels].mean()), gradient / len(labels)
