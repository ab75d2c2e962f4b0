"""What every tool does that writes a model: run it once as its users will, and only then give it its name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from tools.cli.job_options import ModelJob
from transforms.pipelines.first_result import FirstRun
from transforms.pipelines.first_run import FirstRunOptions, first_run
from transforms.pipelines.source import Source
from transforms.run.beside_float import BesideFloat, time_beside_float
from transforms.run.feeds import open_feeds
from transforms.run.run_model import open_model
from transforms.runtime.inputs import ModelInput
from transforms.runtime.trial import open_as_user
from transforms.scheme.targets import ON_CPU, Target

log = logging.getLogger(__name__)

RUNNING, WRITING = "running", "writing"
ENDING = (RUNNING, WRITING)
"""Phases that end the work of a tool."""


def run_once(graph: gs.Graph, source: str, job: ModelJob, target: Target | None = None) -> FirstRun:
    """Export the model of a job and run it once beside the float model in the file ``source``.

    Raises ModelError for a model that ONNX Runtime does not run, or computes wrongly, unless it is made for
    another runtime. What is for this one is timed beside the float model, unless the job says otherwise.
    """
    samples = None if job.data is None else lambda inputs: _samples(job, inputs)
    is_for_here = target is None or target.name == ON_CPU
    found = first_run(
        graph, FirstRunOptions(Source(source), samples, job.functions, is_for_here, job.threads)
    )
    if job.time and is_for_here and found.trial:
        found.time = _timed(found, source, job)
    found.feeds = None  # they are in the way of what is written next
    return found


def _timed(found: FirstRun, source: str, job: ModelJob) -> BesideFloat | None:
    """Return how fast a model is that runs; None if ONNX Runtime fails on the float model, which may be."""
    assert found.feeds is not None, "it was run"
    openers = partial(open_as_user, *found.exported), partial(open_model, Path(source))
    try:
        return time_beside_float(openers, found.feeds, job.run)
    except Exception as error:  # the runtime's exceptions share no narrower class
        log.info("not timed: %s", error)
        return None


def _samples(job: ModelJob, inputs: Sequence[ModelInput]) -> Iterable[tuple[str, Feed]]:
    assert job.data is not None, "asked for before"
    return open_feeds(job.data, inputs, images=job.images, limit=1)
