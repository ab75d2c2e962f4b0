"""Samples put together, so that a model runs several at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ops.array_types import Feed
from transforms.run.run_model import ModelInput


def batch_feeds(feeds: Sequence[Feed], inputs: Sequence[ModelInput], size: int) -> list[Feed]:
    """Return feeds of ``size`` samples each, joined along the first axis; the last may be smaller.

    Raises ValueError where the first dimension of an input is fixed, or samples differ in the other ones.
    """
    if size == 1:
        return list(feeds)
    for one in inputs:
        if not one.shape or one.shape[0] is not None:
            raise ValueError(
                f"batch size {size}: the first dimension of input '{one.name}' {list(one.shape)} is not free"
            )
    return [_join(feeds[i : i + size], i) for i in range(0, len(feeds), size)]


def _join(feeds: Sequence[Feed], first: int) -> Feed:
    joined = {}
    for name in feeds[0]:
        shapes = {feed[name].shape[1:] for feed in feeds}
        if len(shapes) > 1:
            raise ValueError(f"samples {first} to {first + len(feeds) - 1} differ in shape, input '{name}'")
        joined[name] = np.concatenate([feed[name] for feed in feeds])
    return joined
