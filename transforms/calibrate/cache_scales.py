"""Scales of caches: how large keys and values of each head and channel become on samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ops.array_types import Feed, Float32Array
from transforms.quantize_caches import LARGEST
from transforms.runtime.session import OpenModel

MARGIN = 1.25
"""How much further than on the samples each channel may reach, since other texts do.

On SmolLM2-135M with GroupQueryAttention and 16 samples the KL divergence of other texts is 0.0015 nats
without a margin, 0.0009 with 1.15, 0.0008 with 1.25 and 0.0011 with 1.5; with 4 samples 0.0043 without and
0.0013 with 1.25. Samples that the model continues by 64 tokens do as much, in twenty times the time. Caches
that a Concat makes, whose scales are coarser, have 0.0013 with and without.
"""


def cache_scales(model: OpenModel, names: Sequence[str], feeds: Iterable[Feed]) -> dict[str, Float32Array]:
    """Return the scale of each channel of the caches of a float model, [heads, channels], by their names.

    ``names``: outputs [batch, heads, tokens, channels]. The largest level is ``MARGIN`` times the largest
    magnitude on the samples; a channel of zeros has the scale 1. Raises ValueError for samples that leave all
    caches empty.
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
        name: np.where(found > 0, MARGIN * found / LARGEST, 1).astype(np.float32)
        for name, found in largest.items()
    }
