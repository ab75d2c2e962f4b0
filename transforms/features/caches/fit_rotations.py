"""Offsets and matrices with which keys in 4 bits leave least of an error in the scores of their queries.

The offset is the mean key of first tokens, to which most heads give a large share of each sum: less by it
they round to 0. The matrix balances the energies of keys and queries, as balanced truncation does, and
spreads them over all channels: with steps that are alike, the error of a score is the least.
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
"""The share that products of different channels have, since other texts have others: on SmolLM2-135M the
divergence of keys in 4 bits on texts twice as long is 0.021 nats; 0.029 with 1; 0.051 without a rotation."""

MARGIN = 1.15
"""How much larger scales of rotated keys are than those of least error: without, 0.025."""

_LEAST = 1e-6


def fit_rotations(graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions) -> dict[str, Rotation]:
    """Return the rotations of keys by the names of their outputs in a float model, of those that take one.

    None of keys that are empty or not finite on the samples.
    """
    shown = copy_graph(graph)
    caches = [one for one in find_caches(shown) if one.takes_rotation]
    if not caches:
        return {}
    write_rotary_apart(shown, [one.node for one in caches])
    pairs = [(one.node.inputs[QUERY], str(one.present.name)) for one in caches]
    known = {str(one.name) for one in shown.outputs}
    shown.outputs += [queries for queries, _ in pairs if queries.name not in known]
    names = [(str(queries.name), keys) for queries, keys in pairs]
    model, sums = open_model(shown, run), dict[str, _Sums]()
    for feed in feeds:
        made = model.run(feed, list(dict.fromkeys(name for pair in names for name in pair)))
        for queries, keys in names:
            if made[keys].size:
                found = _Sums.of(made[queries].astype(np.float64), made[keys].astype(np.float64))
                sums[keys] = found if keys not in sums else sums[keys].plus(found)
    return {name: found.rotation() for name, found in sums.items() if found.is_finite}


@dataclass(frozen=True)
class _Sums:
    """Products of channels of ``queries`` and of ``keys``, sums of keys and of ``first`` ones, and counts."""

    queries: Float64Array
    keys: Float64Array
    sum: Float64Array
    first: Float64Array
    tokens: int
    texts: int

    @classmethod
    def of(cls, queries: Float64Array, keys: Float64Array) -> _Sums:
        """Return those of queries [batch, tokens, channels of all heads] and keys of heads."""
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
        """Whether all products are."""
        return all(np.isfinite(one).all() for one in (self.queries, self.keys, self.sum))

    def rotation(self) -> Rotation:
        """Return the rotation for these queries and keys."""
        offset = self.first / self.texts
        mixed = offset[:, :, None] * self.sum[:, None]
        less = self.keys - mixed - mixed.swapaxes(1, 2)
        less += self.tokens * offset[:, :, None] * offset[:, None]
        matrices = [balancing(*pair) for pair in zip(less, self.queries, strict=True)]
        return Rotation(offset.astype(np.float32), np.stack(matrices).astype(np.float32))


def balancing(keys: Float64Array, queries: Float64Array) -> Float64Array:
    """Return the matrix M with which k M and M^-1 q have the same products of channels, alike in each.

    ``keys``, ``queries``: their products of channels, sums over tokens.
    """
    root = np.linalg.cholesky(_shrunk(keys))
    axes, sizes, _ = np.linalg.svd(root.T @ _shrunk(queries) @ root)
    inverse = root @ axes / sizes**0.25  # as columns, the axes in which both are the same
    found: Float64Array = np.linalg.inv(inverse).T @ spreading(len(keys))
    return found


def _shrunk(products: Float64Array) -> Float64Array:
    own, mean = np.diag(np.diag(products)), np.trace(products) / len(products)
    least = _LEAST * mean if mean else 1.0  # so that a head of zeros stays as it is
    found: Float64Array = _OF_SAMPLES * products + (1 - _OF_SAMPLES) * own + least * np.eye(len(products))
    return found
