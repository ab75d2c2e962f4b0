"""Runs of the float model that a first run is held against: one feed, and others of other sizes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph.shapes import shape_of
from transforms.model.read_model import ModelError
from transforms.pipelines.first_result import RANDOM
from transforms.pipelines.source import Source
from transforms.run.mend_shapes import fits
from transforms.run.other_sizes import Sizes, free_sizes_in, proposals, resized
from transforms.run.tensor_sizes import TensorSizes
from transforms.runtime.compare_runs import feed_and_run, free_sizes, needs_space, run_in_time
from transforms.runtime.inputs import ModelInput
from transforms.runtime.session import OpenModel, RunOptions
from transforms.runtime.trial import Outputs

log = logging.getLogger(__name__)

Samples = Callable[[Sequence[ModelInput]], Iterable[tuple[str, Feed]]]
"""Returns named feeds for the inputs of a model."""

MOST_AT_ONCE = 1 << 26
"""Bytes of tensors at once above which a model is not run. Copies and outputs of three sessions take about
three times that, and tools 200 MB beyond a plain run (tests/whole_models/test_bounded_memory.py)."""

_MOST_PROPOSED = 1000
_SECONDS = 0.5
"""Proposals of other sizes that are looked at, and seconds of processors that runs of them may take."""


@dataclass(frozen=True)
class Made:
    """What is made of a float model, as a graph and exported."""

    graph: gs.Graph
    light: onnx.GraphProto

    def bytes_of(self, feed: Feed) -> int:
        """Return what tensors take at once for a feed, those aside whose sizes numbers decide.

        Also those of a model with a constant that only our operators can size; the float model's was sized.
        """
        try:
            return TensorSizes(self.graph, (), lambda *_: {}).of(feed).at_once
        except ModelError:
            return 0

    def contradiction(self, outputs: Outputs) -> str:
        """Return how outputs of the float model contradict a declared shape, empty if they do not.

        The optimization of ONNX Runtime goes by what is declared.
        """
        for tensor in self.graph.outputs:
            declared, value = shape_of(tensor), outputs.get(str(tensor.name))
            if declared is not None and isinstance(value, np.ndarray) and not fits(declared, value.shape):
                return f"'{tensor.name}' is declared as {list(declared)}, {RANDOM} make {list(value.shape)}"
        return ""


@dataclass(frozen=True)
class FloatRun:
    """A feed of the float model, in words, and what that makes of it; ``sizes``: those that are other."""

    sample: str
    feed: Feed
    outputs: Outputs
    sizes: str = ""


@dataclass(frozen=True)
class FloatRuns:
    """The first run of a float model, and those of other sizes that it takes.

    ``at_once``: bytes of tensors of the first. ``fixed``: free dimensions of which no other size was found.
    """

    first: FloatRun
    at_once: int
    others: list[FloatRun] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)


def run_float(
    source: Source, samples: Samples | None, inputs: Sequence[ModelInput], made: Made, run: RunOptions
) -> FloatRuns:
    """Run the float model in a file on the first sample, or random numbers, and on other sizes of that.

    ``inputs``: those of what is made of it, whose free dimensions get other sizes. The float model is not
    optimized: it shows what its file says. Raises what its run does.
    """
    model, start = source.open(replace(run, optimize=False)), time.process_time()
    if samples is None:
        kinds = {one.name: one.dtype for one in model.inputs}
        sizes = [replace(one, dtype=kinds[one.name]) for one in inputs]
        first = FloatRun(RANDOM, *feed_and_run(model, {}, sizes, sizes=free_sizes(made.light)))
    else:
        sample, feed = next(iter(samples(model.inputs)))
        start = time.process_time()
        first = FloatRun(f"sample '{sample}'", feed, run_in_time(model, feed))
    seconds = time.process_time() - start
    found = FloatRuns(first, made.bytes_of(first.feed))
    if found.at_once <= MOST_AT_ONCE:
        _add_others(found, model, made, seconds)
    return found


def _add_others(found: FloatRuns, model: OpenModel, made: Made, seconds: float) -> None:
    """Add runs in which each free size is another one once, as far as the float model takes others.

    ``seconds`` of processors: what the first run took.
    """
    free = free_sizes_in(made.graph.inputs, found.first.feed)
    left, end = dict.fromkeys(free), time.process_time() + _SECONDS
    proposed = proposals(free, may_shrink=not needs_space(made.light)) if free else ()
    for sizes in islice(proposed, _MOST_PROPOSED):
        growth = math.prod(size / max(one.size, 1) for one, size in sizes.items())
        if not left.keys() & sizes.keys() or time.process_time() + seconds * growth > end:
            continue
        if run := _run(model, made, found.first, sizes, found.at_once * growth**2):
            found.others.append(run)
            left = {one: None for one in left if one not in sizes}
            if not left:
                break
    found.fixed.extend(one.name for one in left)


def _run(model: OpenModel, made: Made, first: FloatRun, sizes: Sizes, most: float) -> FloatRun | None:
    """Return a run of other sizes, None if the float model does not take them, or they take too much.

    ``most``: bytes of tensors that are no product of more than two lengths each.
    """
    feed, words = resized(first.feed, sizes), _words(sizes)
    if most > MOST_AT_ONCE and made.bytes_of(feed) > MOST_AT_ONCE:
        return None
    try:
        outputs = run_in_time(model, feed)
    except Exception as error:  # of the runtime, which shares no narrower class
        log.debug("the float model does not run at %s: %s", words, error)
        return None
    if not _as_declared(model, outputs):
        return None
    return FloatRun(f"{first.sample} at {words}", feed, outputs, words)


def _as_declared(model: OpenModel, outputs: Outputs) -> bool:
    """Return whether outputs have the sizes that the model declares, by which others may go."""
    declared = {one.name: one.shape for one in model.session.get_outputs()}  # [] of no known rank
    arrays = ((name, value) for name, value in outputs.items() if isinstance(value, np.ndarray))
    return all(not declared[name] or fits(declared[name], array.shape) for name, array in arrays)


def _words(sizes: Sizes) -> str:
    return ", ".join(f"{one.name} = {size}" for one, size in sizes.items())
