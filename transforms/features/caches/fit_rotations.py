"""Fit offsets and matrices that minimize the error of attention scores with keys in 4 bits.

The offset is the mean key of first tokens, to which most heads give a large share of each sum: less this
offset they round to 0. The matrix balances the energies of keys and queries, as balanced truncation does, and
spreads them over all channels: with equal steps, that minimizes the error of a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array
from transforms.channels.hadamard import spreading
from transforms.features.caches.key_rotations import QUERY, Rotation, write_rotary_apart
from transforms.model.copy_graph import copy_graph
from transforms.quantize_caches import find_caches
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions

_OF_SAMPLES = 0.5
"""Weight of products of different channels, which vary between texts: on SmolLM2-135M the divergence of
keys in 4 bits on texts twice as long is 0.021 nats; 0.029 with 1; 0.051 without a rotation."""

MARGIN = 1.15
"""Factor on scales of rotated keys over those of least error: without it, 0.025."""

_LEAST = 1e-6


def fit_rotations(graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions) -> dict[str, Rotation]:
    """Return the rotations of keys in a float model, by name of the output, where the attention takes one.

    Keys that are empty or not finite on the samples get none.
    """
    shown = copy_graph(graph)
    caches = [cache for cache in find_caches(shown) if cache.takes_rotation]
    if not caches:
        return {}
    write_rotary_apart(shown, [cache.node for cache in caches])
    pairs = [(cache.node.inputs[QUERY], str(cache.present.name)) for cache in caches]
    output_names = {str(output.name) for output in shown.outputs}
    shown.outputs += [queries for queries, _ in pairs if queries.name not in output_names]
    names = [(str(queries.name), keys) for queries, keys in pairs]
    model, sums = open_model(shown, run), dict[str, _Sums]()
    for feed in feeds:
        arrays = model.run(feed, list(dict.fromkeys(name for pair in names for name in pair)))
        for queries, keys in names:
            if arrays[keys].size:
                sample_sums = _Sums.of(arrays[queries].astype(np.float64), arrays[keys].astype(np.float64))
                sums[keys] = sample_sums if keys not in sums else sums[keys].plus(sample_sums)
    return {name: total.rotation() for name, total in sums.items() if total.is_finite}


@dataclass(frozen=True)
class _Sums:
    """Channel products of ``queries`` and ``keys``, sums of all keys and of ``first`` keys, and counts."""

    queries: Float64Array
    keys: Float64Array
    sum: Float64Array
    first: Float64Array
    tokens: int
    texts: int

    @classmethod
    def of(cls, queries: Float64Array, keys: Float64Array) -> _Sums:
        """Return the sums of queries [batch, tokens, channels of all heads] and keys by heads."""
        texts, heads, tokens, size = keys.shape
        rows = queries.reshape(*queries.shape[:2], heads, -1, size)
        return cls(
            np.einsum("bthgc,bthgd->hcd", rows, rows, optimize=True),
            np.einsum("bhtc,bhtd->hcd", keys, keys, optimize=True),
            keys.sum((0, 2)),
            keys[:, :, 0].sum(0),
            texts * tokens,
            texts,
        )

    def plus(self, other: _Sums) -> _Sums:
        """Return the sums over the samples of both."""
        return _Sums(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def is_finite(self) -> bool:
        """Whether all sums are finite."""
        return all(np.isfinite(sums).all() for sums in (self.queries, self.keys, self.sum))

    def rotation(self) -> Rotation:
        """Return the rotation for these queries and keys."""
        offset = self.first / self.texts
        mixed = offset[:, :, None] * self.sum[:, None]
        less = self.keys - mixed - mixed.swapaxes(1, 2)
        less += self.tokens * offset[:, :, None] * offset[:, None]
        matrices = [balancing(*pair) for pair in zip(less, self.queries, strict=True)]
        return Rotation(offset.astype(np.float32), np.stack(matrices).astype(np.float32))


def balancing(keys: Float64Array, queries: Float64Array) -> Float64Array:
    """Return the matrix M for which k M and M^-1 q have the same channel products, spread evenly.

    ``keys``, ``queries``: their channel products summed over tokens.
    """
    root = np.linalg.cholesky(_shrunk(keys))
    axes, sizes, _ = np.linalg.svd(root.T @ _shrunk(queries) @ root)
    inverse = root @ axes / sizes**0.25  # as columns, the axes in which both are the same
    matrix: Float64Array = np.linalg.inv(inverse).T @ spreading(len(keys))
    return matrix


def _shrunk(products: Float64Array) -> Float64Array:
    diagonal, mean = np.diag(np.diag(products)), np.trace(products) / len(products)
    least = _LEAST * mean if mean else 1.0  # so that a head of zeros stays as it is
    shrunk: Float64Array = (
        _OF_SAMPLES * products + (1 - _OF_SAMPLES) * diagonal + least * np.eye(len(products))
    )
    return shrunk
