"""Writing the model of a job, and reporting how it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from onnx_narrow.api.result import Result
from onnx_narrow.api.told import Told
from onnx_narrow.api.written import Output
from onnx_narrow.summaries.words import Sizes
from ops.metrics import decibels
from transforms.judge.decisions import Checked
from transforms.pipelines.work import Work

Lines = Callable[[Sizes], Iterable[str]]
"""Returns the summary of a model, by its sizes."""


def finish(
    work: Work,
    output: Output,
    told: Told,
    entries: Mapping[str, str],
    summary: tuple[Lines, Iterable[str]],
    *,
    outputs: Checked | None = None,
    beside: AbstractContextManager[None] | None = None,
    **more: Any,
) -> Result:
    """Write the model of finished work, report how it was made, and return the result.

    ``entries``: of its metadata. ``summary``: its lines, and warnings. ``outputs``: the error of the outputs,
    if several samples were compared. ``beside``: open while the model is written. ``more``: fields of the
    result.
    """
    first = work.record.first
    assert first is not None, "the model was tried out"
    with beside or nullcontext():
        told.phase("writing")
        model, sizes = output.write(work.graph, entries, first.exported)
    if work.options.finished:
        work.options.finished.remove()
    told.tell(summary[0](sizes), summary[1])
    if outputs is None and first.as_opened and first.as_opened.error is not None:
        outputs = Checked(first.as_opened.error, 1)
    told_of: dict[str, Any] = {"notes": told.lines, "warnings": told.warnings, "time": first.time}
    record: dict[str, Any] = {"steps": work.record.steps, "metric": work.record.metric}
    return Result(path=sizes.path, in_memory=model, **told_of, **record, **_figures(outputs), **more)


def _figures(outputs: Checked | None) -> dict[str, Any]:
    """Return the fields of a result on the error of the outputs."""
    if outputs is None:
        return {}
    error, is_held_out = outputs.decibels_error or None, outputs.decided is False
    sqnr = decibels(outputs.error)
    return {"sqnr": sqnr, "sqnr_error": error, "samples": outputs.samples, "held_out": is_held_out}
