"""The first run of a model, before its file gets its name: as its users run it, against the float model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms import model_io
from transforms.deploy.rounded_inputs import rounded_inputs
from transforms.files.runtime_message import said_by_runtime
from transforms.functions.attach_functions import attach_functions
from transforms.graph.number_shapes import judged_tensors
from transforms.graph.shapes import shape_of
from transforms.graph.typed import source_files
from transforms.leave_float import leave_float
from transforms.model.read_model import ModelError
from transforms.model_io import Exported
from transforms.run.beside_float import BesideFloat
from transforms.run.coded_caches import coded_caches, encoded
from transforms.run.mend_shapes import fits
from transforms.run.tensor_sizes import TensorSizes
from transforms.runtime.compare_runs import (
    MOST_WEIGHTS,
    feed_and_run,
    free_sizes,
    not_repeatable,
    run_in_time,
    too_large,
)
from transforms.runtime.devices import has_vnni
from transforms.runtime.inputs import ModelInput, check_feed, taken_shape
from transforms.runtime.session import RunOptions, open_session, why_not_on_cpu
from transforms.runtime.trial import Outputs, Trial, find_fault, open_as_user, try_model

_MOST_KEPT = 16
"""Nodes left in float before a model is refused: each takes twenty sessions to find."""

_MOST_AT_ONCE = 1 << 26
"""Bytes of tensors at once above which a model is not run. Copies and outputs of three sessions take about
three times that, and tools 200 MB beyond a plain run (tests/whole_models/test_bounded_memory.py)."""

RANDOM = "random numbers"

Samples = Callable[[Sequence[ModelInput]], Iterable[tuple[str, Feed]]]
"""Returns named feeds for the inputs of a model."""


@dataclass(frozen=True)
class FirstRunOptions:
    """How a model is run for the first time.

    ``source``: the file of the float model. Without ``samples`` random numbers are fed. ``functions``:
    whether operators of ours get them. ``mends``: nodes that the runtime computes wrongly are left in float,
    or the model is refused; else, for a model that is made for another runtime, it is said.
    """

    source: Path
    samples: Samples | None = None
    functions: bool = True
    mends: bool = True
    threads: int = 0


@dataclass
class FirstRun:
    """A model as it is exported, and what its first run showed.

    ``why_not``: why the CPU provider does not open it; ``not_run``: why it was only opened. ``sample``: what
    it was run on, with the result ``trial``, and ``feeds``, its own and that of the float model; ``rounded``:
    the same where ONNX Runtime rounds inputs of products, which a session option prevents. ``kept``: a line
    on each node that was left in float; ``wrong``: on one that was not. ``time``: how fast it is, if timed.
    """

    exported: Exported
    why_not: str | None = None
    not_run: str = ""
    sample: str = ""
    trial: Trial | None = None
    rounded: Trial | None = None
    kept: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    feeds: tuple[Feed, Feed] | None = field(default=None, repr=False)
    time: BesideFloat | None = None

    @property
    def has_sample(self) -> bool:
        """Whether the model was run on a sample, and not on random numbers."""
        return self.sample not in ("", RANDOM)


def first_run(graph: gs.Graph, options: FirstRunOptions) -> FirstRun:
    """Export a graph, and run it once before it is saved.

    A node that ONNX Runtime computes wrongly when it optimizes the model is left in float, in the graph.
    Raises ModelError, naming node and reason, for a model that does not run although the float model does,
    or that is computed wrongly all the same; nothing is saved then.
    """
    exported = _export(graph, options)
    found = FirstRun(exported, why_not_on_cpu(*exported), _too_large(graph, exported, options.source))
    if found.why_not is not None or found.not_run:
        return found
    run = RunOptions(threads=options.threads, spin=False, arena=False)  # for one run neither pays
    try:
        inputs = open_as_user(*exported, replace(run, optimize=False)).inputs
    except ValueError as error:  # bfloat16, for example, or a sequence
        return replace(found, not_run=str(error))
    try:
        found.sample, given, wanted = _reference(options, run, inputs, free_sizes(exported[0].graph))
    except Exception as error:  # of the runtime, which shares no narrower class, and on the float model
        return replace(found, not_run=f"the float model does not run: {said_by_runtime(error)}")
    taken = {**given, **encoded(given, coded_caches(graph))}
    pairs = [(one, taken[one.name]) for one in inputs]
    feed = {
        one.name: array.astype(one.dtype, copy=False).reshape(taken_shape(one, array)) for one, array in pairs
    }
    try:
        check_feed(inputs, feed, found.sample)
    except ValueError:
        return replace(found, not_run=f"{found.sample} has other shapes than its inputs")
    found.feeds = feed, given
    if (size := _bytes_of(graph, feed)) > _MOST_AT_ONCE:
        return replace(found, not_run=f"its tensors take {size:,} bytes at once, more than {_MOST_AT_ONCE:,}")
    try:
        return _run(graph, found, feed, wanted, run, options)
    except TimeoutError as error:
        return replace(found, not_run=str(error))
    except ModelError as error:
        if found.trial is None and any(judged != [name] for name, judged in judged_tensors(graph).items()):
            return replace(found, not_run=f"it fails on {found.sample}: {error}")
        raise


def _too_large(graph: gs.Graph, exported: Exported, source: Path) -> str:
    """Return why running a model beside its float model would take too much, empty if it does not."""
    files = source_files(graph)
    stored = sum(path.stat().st_size for path in (files if source in files else [source]))
    if stored > MOST_WEIGHTS:
        return f"the float model has {stored:,} bytes, more than {MOST_WEIGHTS:,}"
    return too_large(*exported)


def _bytes_of(graph: gs.Graph, feed: Feed) -> int:
    """Return what tensors take at once for a feed, those aside whose sizes numbers decide.

    Also those of a model with a constant that only our operators can size; the float model's was sized.
    """
    try:
        return TensorSizes(graph, (), lambda *_: {}).of(feed).at_once
    except ModelError:
        return 0


def _run(
    graph: gs.Graph, found: FirstRun, feed: Feed, wanted: Outputs, run: RunOptions, options: FirstRunOptions
) -> FirstRun:
    """Run the model, and again after each node that is left in float."""
    contradiction = "" if found.has_sample else _contradiction(graph, wanted)
    wanted = _comparable(graph, found.exported[0], wanted)
    while True:
        found.trial = try_model(*found.exported, feed, wanted, run)
        if not _is_broken(found.trial):
            return found
        if contradiction:
            return replace(found, trial=None, sample="", not_run=contradiction)
        if rounded_inputs(graph) and not run.full_inputs:
            run, found.rounded = replace(run, full_inputs=True), found.trial
            continue
        reason, made = _fault(found, feed, run)
        if not options.mends:
            return replace(found, wrong=[reason])
        if len(found.kept) == _MOST_KEPT or not leave_float(graph, made):
            raise ModelError(reason)
        found.kept.append(reason)
        found.exported = _export(graph, options)


def _contradiction(graph: gs.Graph, made: Outputs) -> str:
    """Return how random numbers contradict the declared shape of an output, empty if they do not.

    Where inputs decide sizes, those that a model is made for may fit what it declares, and the optimization
    of ONNX Runtime goes by that.
    """
    for tensor in graph.outputs:
        declared, value = shape_of(tensor), made.get(str(tensor.name))
        if declared is not None and isinstance(value, np.ndarray) and not fits(declared, value.shape):
            return f"'{tensor.name}' is declared as {list(declared)}, {RANDOM} make {list(value.shape)}"
    return ""


def _comparable(graph: gs.Graph, light: onnx.ModelProto, wanted: Outputs) -> Outputs:
    """Return the outputs whose numbers have those of another run for each of them.

    Not so if the model draws numbers, or where numbers decide how many rows there are.
    """
    if not_repeatable(light.graph):
        return {}
    alike = (name for name, judged in judged_tensors(graph).items() if judged == [name])
    return {name: wanted[name] for name in alike if name in wanted}


def _is_broken(trial: Trial) -> bool:
    """Return whether ONNX Runtime is at fault, and not the processor."""
    return bool(trial.failure or (trial.wrong and has_vnni() is not False))


def _fault(found: FirstRun, feed: Feed, run: RunOptions) -> tuple[str, str]:
    """Return what is wrong in words, and the name of the tensor that the node makes, empty if unknown."""
    trial, (light, weights) = found.trial, found.exported
    assert trial is not None, "it showed the fault"
    change = None if trial.failure else max(one.between for one in trial.wrong.values())
    node = find_fault(light, weights, feed, run, change)
    where = f"{node.op_type} '{node.name or node.output[0]}'" if node else "the model"
    what = f"fails: {trial.failure}" if trial.failure else f"computes it wrongly: {_figures(trial)}"
    words = f"{where}: ONNX Runtime with its default optimization {what}"
    return words, node.output[0] if node else ""


def _figures(trial: Trial) -> str:
    name, errors = next(iter(trial.wrong.items()))
    return f"output '{name}' at {decibels(errors.made)} dB, {decibels(errors.plain)} dB without"


def sqnr(error: float) -> float:
    """Return a squared error by power as a signal to noise ratio in dB; infinite without any."""
    if not math.isfinite(error):
        return -math.inf
    return -10 * math.log10(error) if error else math.inf


def decibels(error: float) -> str:
    """Return the same in words."""
    return f"{sqnr(error):.1f}"


def _export(graph: gs.Graph, options: FirstRunOptions) -> Exported:
    light, weights = model_io.export(graph)
    if options.functions:
        attach_functions(light)
    return light, weights


def _reference(
    options: FirstRunOptions, run: RunOptions, inputs: Sequence[ModelInput], free: Sequence[int]
) -> tuple[str, Feed, Outputs]:
    """Return the name of a feed of the float model, the feed, and what the float model makes of it.

    ``inputs``: those of the model beside it; ``free``: sizes of their free dimensions. The float model is not
    optimized: it shows what its file says.
    """
    model = open_session(options.source, replace(run, optimize=False))
    if options.samples is None:
        kinds = {one.name: one.dtype for one in model.inputs}
        sizes = [replace(one, dtype=kinds[one.name]) for one in inputs]
        return RANDOM, *feed_and_run(model, {}, sizes, sizes=free)
    sample, feed = next(iter(options.samples(model.inputs)))
    return f"sample '{sample}'", feed, run_in_time(model, feed)
