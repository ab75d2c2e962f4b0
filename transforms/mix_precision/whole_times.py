"""Whether a model in mixed precision is faster as a whole, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.run.turns import Timer, Timing, saving
from transforms.runtime.session import RunOptions
from transforms.search.assign_by_time import last_that_is_faster
from transforms.search.greedy_search import Assignment, Choices

_SAMPLES = 8
_SECONDS, _EACH = 60.0, 10.0
"""About how long all models together are timed, and one of them at most."""


@dataclass(frozen=True)
class WholeTimes:
    """Seconds of an inference in float, before layers are moved, and after (None: none was moved).

    All of them took turns. ``refused``: models of the search that were timed as well, and were not faster
    than the baseline.
    """

    float_run: Timing
    before: Timing
    after: Timing | None
    refused: int = 0


def confirm(
    found: Assignment,
    float_graph: gs.Graph,
    build: Callable[[Choices], gs.Graph],
    feeds: Sequence[Feed],
    run: RunOptions,
    timer: Timer,
) -> tuple[Assignment, WholeTimes]:
    """Return the last accepted model that is faster than the baseline as a whole, and the times.

    It is faster if it was in three of four rounds, in turns with the baseline and the float model. If none
    is, nothing is moved.
    """
    share = min(_EACH, _SECONDS / len(found.steps))
    feeds, baseline = feeds[:_SAMPLES], build({})
    timed: list[WholeTimes] = []

    def _is_faster(choices: Choices) -> bool:
        seconds = timer([float_graph, baseline, build(choices)], feeds, run, share)
        plain, before, after = map(Timing.of, seconds)
        timed.append(WholeTimes(plain, before, after, refused=len(timed)))
        return saving(seconds[1], seconds[2]).low > 0

    kept = last_that_is_faster(found, _is_faster)
    if kept.choices:
        return kept, timed[-1]
    plain, before = map(Timing.of, timer([float_graph, baseline], feeds, run, share))
    return kept, WholeTimes(plain, before, None, refused=len(timed))
