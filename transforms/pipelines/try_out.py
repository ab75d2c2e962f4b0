"""Step: run the model once as its users will, and compare and time it with the float model, before saving."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

from ops.array_types import Feed
from transforms.pipelines.first_result import FirstRun
from transforms.pipelines.first_run import FirstRunOptions, first_run
from transforms.pipelines.work import Work
from transforms.run.beside_float import BesideFloat, time_beside_float
from transforms.runtime.inputs import ModelInput
from transforms.runtime.trial import open_as_user
from transforms.scheme.targets import ON_CPU, target

log = logging.getLogger(__name__)


def try_out(work: Work) -> None:
    """Check the rules of the target device, run the model on a sample, and time it against the float model.

    Raises ModelError for a model that ONNX Runtime does not run, or computes wrongly, unless it is made for
    another runtime; ValueError for a model that breaks a rule of its target. Large models are not timed.
    """
    work.events.phase("test run")
    assert work.source is not None, "a work without a source is not tried out"
    row = target(work.scheme.target) if work.scheme.target else None
    if row:
        from transforms.deploy.refuse import refuse_broken

        refuse_broken(work.graph, row)
    is_for_here = row is None or row.name == ON_CPU
    samples = None if work.data is None else partial(_sample, work)
    options = FirstRunOptions(
        work.source, samples, work.options.functions, is_for_here, work.options.run.threads
    )
    result = first_run(work.graph, options)
    if work.options.times and is_for_here and result.trial and result.once is None:
        result.time = _timed(result, work)
    result.feeds = None  # frees memory for writing
    work.record.first = result


def _timed(result: FirstRun, work: Work) -> BesideFloat | None:
    """Return the timing of a model that runs; None if a session fails, as that of the float model may."""
    assert result.feeds is not None and work.source is not None, "it was run"
    openers = partial(open_as_user, *result.exported), work.source.open
    try:
        return time_beside_float(openers, result.feeds, work.options.run)
    except Exception as error:  # the runtime's exceptions share no narrower class
        log.info("not timed: %s", error)
        return None


def _sample(work: Work, inputs: Sequence[ModelInput]) -> Iterable[tuple[str, Feed]]:
    assert work.data is not None, "asked for before"
    return islice(work.data.feeds_of(inputs), 1)
