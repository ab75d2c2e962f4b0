"""How long each kernel of a model takes, as the runtime's own profile says."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ops.array_types import Feed
from transforms.run.turns import clock_for, take_turns
from transforms.runtime.session import OpenModel, RunOptions

_SECONDS, _FEWEST, _MOST = 0.5, 3, 20
"""Processor seconds after which no more inferences are made, and their least and greatest number."""

_BODIES = {"If", "Loop", "Scan"}
"""Operators whose time is that of the nodes in their bodies, which are listed separately."""

Opener = Callable[[RunOptions], OpenModel]
"""Opens a model as its users do, with these options."""


@dataclass(frozen=True)
class Kernel:
    """A node of an optimized model: its operator and name, and its seconds per inference.

    ``made``: bytes of its outputs, 0 if the profile does not list them.
    """

    op: str
    name: str
    seconds: float
    made: int = 0


def profiled(
    openers: Sequence[Opener], feeds: Sequence[Feed], options: RunOptions, seconds: float = _SECONDS
) -> list[list[Kernel]]:
    """Return the kernels of each model in execution order; an empty list without a profile.

    The models take turns, each on its feed, so that other load on the machine affects them alike. The
    runtime's profile has wall-clock time only, which varies least on one thread: ``options`` are those of
    :func:`transforms.run.turns.timed_options`. ``seconds``: processor time after which no more inferences
    are made.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = (str(Path(folder) / str(number)) for number in range(len(openers)))
        models = [open_(replace(options, profile=path)) for open_, path in zip(openers, paths, strict=True)]
        clock = clock_for(options)
        runs = len(take_turns(models, lambda: [feeds], _MOST, seconds, clock=clock, fewest=_FEWEST)[0])
        return [_kernels(model, runs) for model in models]


def _typical(seconds: Sequence[float]) -> float:
    """Return the lower quartile: other load on the machine only makes a kernel slower."""
    return sorted(seconds)[len(seconds) // 4]


def _kernels(model: OpenModel, runs: int) -> list[Kernel]:
    try:
        events = json.loads(Path(model.session.end_profiling()).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the disk is full
        return []
    taken = defaultdict[tuple[object, str, str], list[float]](list)
    output_bytes = dict[tuple[object, str, str], int]()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            key = event["args"].get("node_index"), event["args"]["op_name"], event["name"]
            taken[key].append(event["dur"] / 1e6)
            output_bytes[key] = int(event["args"].get("output_size") or 0)
    kernels = []
    for key, seconds in taken.items():
        _, op, name = key
        later = seconds[len(seconds) // (1 + runs) :]  # the first run also allocates
        kernels.append(Kernel(op, name, _typical(later) * len(later) / runs, output_bytes[key]))
    return [kernel for kernel in kernels if kernel.op not in _BODIES]
