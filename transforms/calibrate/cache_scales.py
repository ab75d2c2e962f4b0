"""Scales of caches: how large keys and values of each head and channel become on samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ops.array_types import Feed, Float32Array
from transforms.quantize_caches import LARGEST
from transforms.runtime.session import OpenModel


def cache_scales(model: OpenModel, names: Sequence[str], feeds: Iterable[Feed]) -> dict[str, Float32Array]:
    """Return the scale of each channel of the caches of a float model, [heads, channels], by their names.

    ``names``: outputs [batch, heads, tokens, channels]. The largest magnitude on the samples gets the largest
    level, so that no number is clipped there; a channel of zeros has the scale 1. Raises ValueError for
    samples that leave all caches empty.
    """
    largest: dict[str, Float32Array] = {}
    for feed in feeds:
        for name, array in model.run(feed, names).items():
            if array.size:
                found = np.abs(array).max((0, 2))
                largest[name] = np.maximum(largest.get(name, found), found)
    if missing := [name for name in names if name not in largest]:
        raise ValueError(f"cache '{missing[0]}' has no range: it is empty on all samples")
    return {
        name: np.where(found > 0, found / LARGEST, 1).astype(np.float32) for name, found in largest.items()
    }
