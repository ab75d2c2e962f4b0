"""Running the steps of a quantization."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onnx_narrow.api.finish import finish
from onnx_narrow.api.result import Result
from onnx_narrow.api.told import Told
from onnx_narrow.api.written import Output
from onnx_narrow.summaries import work_lines
from onnx_narrow.summaries.quantize import kept_in_float
from onnx_narrow.summaries.words import Sizes, summed_up
from transforms.calibrate.calibration_data import MissingDataError
from transforms.files.spelling import spelled
from transforms.judge.decisions import Checked
from transforms.pipelines.check_outputs import UselessError
from transforms.pipelines.entries import final_entries
from transforms.pipelines.require import NothingToDoError
from transforms.pipelines.steps import Steps, phases_of, run
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.search.output_metrics import METRICS

if TYPE_CHECKING:
    from onnx_narrow.api.ranges import RangeFiles


def untuned(scheme: Scheme) -> Scheme:
    """Return the scheme without tuning, which rounds weights itself unless ``fit_weights`` is true."""
    fits = scheme.fit_weights if scheme.finetune is None else scheme.fit_weights is True
    return scheme.with_(finetune=None, fit_weights=fits)


def run_steps(
    work: Work, steps: Steps, output: Output, told: Told, ranges: RangeFiles | None = None
) -> Result:
    """Run the steps, write the model and report how it was made; ``ranges``: range files to write with it.

    Raises the errors of steps in terms of keywords, and NothingToDoError with the reasons.
    """
    told.expect(*phases_of(work, steps), "writing")
    try:
        run(work, steps, {"record.first": "try_out"})
    except NothingToDoError as error:
        raise NothingToDoError("\n".join(_reasons(work))) from error
    except UselessError as error:
        raise ValueError(work_lines.useless(error.outputs, work)) from error
    except MissingDataError as error:
        alternative = "" if work.asked.auto_mixed_precision else ", or {random_data:N} for an experiment"
        raise ValueError(f"{error}: {spelled('give {data:DIR}' + alternative)}") from error
    record, grids, in_float = work.record, list(work.record.grids or ()), kept_in_float(work.graph)

    def _lines(sizes: Sizes) -> Iterable[str]:
        of_ranges = ranges.line(grids) if ranges else ()
        return summed_up((*work_lines.lines(work, sizes, in_float), *of_ranges), told.lines)

    return finish(
        work,
        output,
        told,
        final_entries(work),
        (_lines, work_lines.warnings(work)),
        outputs=_shown(work),
        beside=ranges.writing(grids) if ranges else None,
        scheme=work.scheme,
        converted={f"{name} {role}": count for (name, role), count in record.tensors.items()},
        kept=dict(in_float),
        decided=list(record.decisions.tried),
        sensitivity=record.sensitivity,
    )


def _shown(work: Work) -> Checked | None:
    """Return the error of the outputs in dB that the summary shows, on held-out samples if there are any."""
    outputs, is_chosen = work.record.decisions.outputs, work.record.tuned or work.record.mixed
    goal, reached, held_out = work.options.goal, work.record.reached, work.held_out
    if goal and goal.metric == "sqnr" and reached and held_out and held_out.is_apart:
        error = METRICS["sqnr"].error(reached.after)
        return Checked(error, len(held_out.feeds), False, decibels_error=reached.error)
    return None if outputs is None or outputs.of_tokens or is_chosen else outputs


def _reasons(work: Work) -> Sequence[str]:
    from transforms.pipelines.why_nothing import why_nothing  # imports take time that small jobs notice

    assert work.source is not None, "it was loaded"
    first = f"Nothing to do: no tensor of '{work.source}' can take a format of this scheme."
    scheme = work.asked.with_(finetune=None, tensors=work.scheme.tensors)
    return [first, *(f"  {line}" for line in why_nothing(work.source.load, scheme))]
