"""The layers of a small transformer in NumPy with their backward passes, see :mod:`examples.training.layers`.

Rows are ``[batch, token, width]``, heads ``[batch, head, token, size]``.
"""

from __future__ import annotations

import numpy as np

from examples.training.layers import Array, Backward


def project(x: Array, weight: Array) -> tuple[Array, Backward]:
    """Multiply rows by ``weight`` ``[in, out]``."""

    def backward(dy: Array) -> tuple[Array, ...]:
        return dy @ weight.T, x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    return x @ weight, backward


def normalize_rows(x: Array, scale: Array, epsilon: float) -> tuple[Array, Backward]:
    """Bring each row to mean 0 and variance 1, times ``scale`` ``[width]`` (arXiv 1607.06450)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    unit = centred / deviation

    def backward(dy: Array) -> tuple[Array, ...]:
        slope = dy * scale
        slope = (
            slope - slope.mean(axis=-1, keepdims=True) - unit * (slope * unit).mean(axis=-1, keepdims=True)
        )
        return slope / deviation, (dy * unit).sum(axis=(0, 1))

    return unit * scale, backward


def split_heads(x: Array, heads: int) -> tuple[Array, Backward]:
    """Cut the channels of rows into heads."""
    batch, tokens, width = x.shape

    def backward(dy: Array) -> tuple[Array, ...]:
        return (dy.swapaxes(1, 2).reshape(x.shape),)

    return x.reshape(batch, tokens, heads, width // heads).swapaxes(1, 2), backward


def turn(x: Array, cosine: Array, sine: Array) -> tuple[Array, Backward]:
    """Turn channels i and i + size / 2 of heads by the angle of their token (arXiv 2104.09864).

    ``cosine``, ``sine``: of the angles, ``[token, size / 2]``.
    """

    def _turned(y: Array, sine: Array) -> Array:
        first, second = np.split(y, 2, axis=-1)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    return _turned(x, sine), lambda dy: (_turned(dy, -sine),)


def attend(queries: Array, keys: Array, values: Array) -> tuple[Array, Backward]:
    """Sum values by a softmax over the keys of each token and those before it (arXiv 1706.03762).

    Of more heads of queries than of keys and values, as many in turn read the same.
    """
    batch, _, tokens, size = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], -1, tokens, size)
    factor = queries.dtype.type(size**-0.5)
    scores = factor * grouped @ keys[:, :, None].swapaxes(-1, -2)
    scores = np.where(np.tri(tokens, dtype=bool), scores, queries.dtype.type(-np.inf))
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)

    def backward(dy: Array) -> tuple[Array, ...]:
        slope = dy.reshape(grouped.shape)
        dvalues = (shares.swapaxes(-1, -2) @ slope).sum(axis=2)
        dshares = slope @ values[:, :, None].swapaxes(-1, -2)
        dscores = factor * shares * (dshares - (dshares * shares).sum(axis=-1, keepdims=True))
        dkeys = (dscores.swapaxes(-1, -2) @ grouped).sum(axis=2)
        return (dscores @ keys[:, :, None]).reshape(queries.shape), dkeys, dvalues

    return (shares @ values[:, :, None]).reshape(queries.shape), backward


def gate(x: Array, other: Array) -> tuple[Array, Backward]:
    """Return x sigmoid(x) times another array (SwiGLU, arXiv 2002.05202)."""
    share = 1 / (1 + np.exp(-x))

    def backward(dy: Array) -> tuple[Array, ...]:
        return dy * other * share * (1 + x * (1 - share)), dy * x * share

    return x * share * other, backward
