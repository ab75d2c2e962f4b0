"""What tensors of the float model hold on samples: some rows of each, and the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from ops.array_types import Feed, Float32Array
from transforms.run.feeds import Feeds

SAMPLES = 16
"""Samples, evenly spread over the data, that decide: more change little and cost time."""

ROWS = 256
"""Rows of a tensor, of all samples together."""


@dataclass(frozen=True)
class Sample:
    """A feed, rows [rows, channels] of tensors by name, and the outputs of the float model."""

    feed: Feed
    rows: dict[str, Float32Array]
    outputs: Feed


def pick(feeds: Feeds) -> list[Feed]:
    """Return the feeds that decide; none of data that can be taken only once."""
    if not feeds.is_repeatable:
        return []
    step = step_of(feeds)
    return [feed for _, feed in islice(feeds, 0, SAMPLES * step, step)]


def step_of(feeds: Feeds) -> int:
    """Return how many feeds lie between two that decide, 1 if these are the first ones."""
    try:
        return max(1, len(feeds) // SAMPLES)
    except TypeError:
        return 1


def some_rows(array: Float32Array, count: int) -> Float32Array:
    """Return a copy of some rows of a tensor, along its last axis, evenly spread."""
    rows = array.reshape(-1, array.shape[-1])
    if len(rows) <= count:
        return rows.copy()
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
