"""Run the float model for the first run to compare with: on one feed, and on feeds of other sizes."""

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
"""Most bytes of tensors that are alive at once in a model that is run. Copies and outputs of three sessions
take about three times that, and tools 200 MB more than a plain run
(tests/whole_models/test_bounded_memory.py)."""

_MOST_PROPOSED = 1000
_SECONDS = 0.5
"""Most proposals of other sizes to consider, and the processor seconds that runs of them may take."""


@dataclass(frozen=True)
class Made:
    """A quantized model, as a graph and exported."""

    graph: gs.Graph
    light: onnx.GraphProto

    def bytes_of(self, feed: Feed) -> int:
        """Return the most bytes of tensors alive at once for a feed, without those sized by values.

        Returns 0 for a model with a constant of unknown size, as of a custom operator: the float model has
        been sized.
        """
        try:
            return TensorSizes(self.graph, (), lambda *_: {}).of(feed).at_once
        except ModelError:
            return 0

    def contradiction(self, outputs: Outputs) -> str:
        """Return in words the output of the float model that contradicts its declared shape, empty if none.

        The optimization of ONNX Runtime relies on declared shapes.
        """
        for tensor in self.graph.outputs:
            declared, value = shape_of(tensor), outputs.get(str(tensor.name))
            if declared is not None and isinstance(value, np.ndarray) and not fits(declared, value.shape):
                return f"'{tensor.name}' is declared as {list(declared)}, {RANDOM} make {list(value.shape)}"
        return ""


@dataclass(frozen=True)
class FloatRun:
    """A feed of the float model, its name in words, and the outputs; ``sizes``: changed sizes, in words."""

    sample: str
    feed: Feed
    outputs: Outputs
    sizes: str = ""


@dataclass(frozen=True)
class FloatRuns:
    """The first run of a float model, and ``others``, runs at other sizes.

    ``at_once``: bytes of tensors alive at once in the first. ``fixed``: free dimensions for which the model
    takes no other size.
    """

    first: FloatRun
    at_once: int
    others: list[FloatRun] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)


def run_float(
    source: Source, samples: Samples | None, inputs: Sequence[ModelInput], quantized: Made, run: RunOptions
) -> FloatRuns:
    """Run the float model on the first sample, or on random numbers, and on the same feed in other sizes.

    ``inputs``: those of the quantized model, whose free dimensions get other sizes. The float model runs
    without optimization, as a reference. Raises as its first run does.
    """
    model, start = source.open(replace(run, optimize=False)), time.process_time()
    if samples is None:
        dtypes = {tensor.name: tensor.dtype for tensor in model.inputs}
        sizes = [replace(tensor, dtype=dtypes[tensor.name]) for tensor in inputs]
        first = FloatRun(RANDOM, *feed_and_run(model, {}, sizes, sizes=free_sizes(quantized.light)))
    else:
        sample, feed = next(iter(samples(model.inputs)))
        start = time.process_time()
        first = FloatRun(f"sample '{sample}'", feed, run_in_time(model, feed))
    seconds = time.process_time() - start
    runs = FloatRuns(first, quantized.bytes_of(first.feed))
    if runs.at_once <= MOST_AT_ONCE:
        _add_others(runs, model, quantized, seconds)
    return runs


def _add_others(runs: FloatRuns, model: OpenModel, quantized: Made, seconds: float) -> None:
    """Add runs so that each free dimension has another size once, as far as the float model takes others.

    ``seconds``: the processor time of the first run.
    """
    free = free_sizes_in(quantized.graph.inputs, runs.first.feed)
    left, end = dict.fromkeys(free), time.process_time() + _SECONDS
    proposed = proposals(free, may_shrink=not needs_space(quantized.light)) if free else ()
    for sizes in islice(proposed, _MOST_PROPOSED):
        growth = math.prod(size / max(dimension.size, 1) for dimension, size in sizes.items())
        if not left.keys() & sizes.keys() or time.process_time() + seconds * growth > end:
            continue
        if run := _run(model, quantized, runs.first, sizes, runs.at_once * growth**2):
            runs.others.append(run)
            left = {dimension: None for dimension in left if dimension not in sizes}
            if not left:
                break
    runs.fixed.extend(dimension.name for dimension in left)


def _run(model: OpenModel, quantized: Made, first: FloatRun, sizes: Sizes, most: float) -> FloatRun | None:
    """Return a run at other sizes; None if the float model does not take them, or they need too much memory.

    ``most``: upper estimate of the bytes of tensors, if none grows with more than two of the lengths.
    """
    feed, words = resized(first.feed, sizes), _words(sizes)
    if most > MOST_AT_ONCE and quantized.bytes_of(feed) > MOST_AT_ONCE:
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
    """Return whether outputs have the sizes that the model declares, on which optimizations rely."""
    declared = {output.name: output.shape for output in model.session.get_outputs()}  # [] for unknown rank
    arrays = ((name, value) for name, value in outputs.items() if isinstance(value, np.ndarray))
    return all(not declared[name] or fits(declared[name], array.shape) for name, array in arrays)


def _words(sizes: Sizes) -> str:
    return ", ".join(f"{free.name} = {size}" for free, size in sizes.items())
