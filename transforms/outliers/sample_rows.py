"""What tensors of the float model hold on samples: some rows of each, and the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float32Array
from transforms.run.feeds import Feeds
from transforms.run.instrumented_model import InstrumentedModel, float_outputs
from transforms.run.run_each import run_each, with_resting_threads
from transforms.runtime.session import RunOptions

SAMPLES = 16
"""Samples, evenly spread over the data, that decide: more change little and cost time."""

_ROWS = 256  # of a tensor, of all samples together


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
    try:
        step = max(1, len(feeds) // SAMPLES)
    except TypeError:
        step = 1
    return [feed for _, feed in islice(feeds, 0, SAMPLES * step, step)]


def look(
    graph: gs.Graph,
    names: Sequence[str],
    feeds: Sequence[Feed],
    run: RunOptions | None,
    affordable: Callable[[Mapping[str, float]], int],
) -> Iterator[Sample]:
    """Yield what the float model makes of the first feeds; rows are evenly spread over a tensor.

    ``affordable`` returns how many, from the numbers that each of the tensors has on the first.
    """
    outputs = float_outputs(graph)
    model = InstrumentedModel[str](graph, [*outputs, *names], with_resting_threads(run))
    first = model.run(feeds[0])
    feeds = feeds[: affordable({name: first[name].size for name in names})]
    count = max(1, _ROWS // len(feeds))

    def _sample(feed: Feed, found: Feed) -> Sample:
        rows = {name: _some(found[name], count) for name in names}
        return Sample(feed, rows, {name: found[name] for name in outputs})

    yield _sample(feeds[0], first)
    yield from run_each(lambda feed: _sample(feed, model.run(feed)), feeds[1:], run)


def _some(array: Float32Array, count: int) -> Float32Array:
    rows = array.reshape(-1, array.shape[-1])
    if len(rows) <= count:
        return rows.copy()
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
