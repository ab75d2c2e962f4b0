"""Describe the faults that a first run shows, and find the faulty node."""

from __future__ import annotations

from collections.abc import Sequence

from ops.metrics import in_decibels
from transforms.model_io import Exported
from transforms.pipelines.float_runs import FloatRun
from transforms.pipelines.source import Source
from transforms.runtime.compare_runs import run_in_time
from transforms.runtime.output_errors import NOTICED, OutputErrors, relative_error
from transforms.runtime.session import RunOptions
from transforms.runtime.trial import Case, Trial
from transforms.search.output_metrics import is_float_array

_GOOD = 0.1
"""Largest relative squared error of an output that counts as computed, so that other sizes are compared with
it."""


def fault(exported: Exported, case: Case, trial: Trial, run: RunOptions) -> tuple[str, str]:
    """Return the fault in words, and the first output of the faulty node, empty if unknown."""
    change = None if trial.failure else max(error.between for error in trial.wrong.values())
    from transforms.runtime.find_fault import find_fault  # rarely needed

    node = find_fault(*exported, case.feed, run, change)
    place = f"{node.op_type} '{node.name or node.output[0]}'" if node else "the model"
    words = f"with its default optimization fails: {trial.failure}" if trial.failure else _wrong(trial)
    where = f" on {case.where}" if case.where else ""
    return f"{place}: ONNX Runtime {words}{where}", node.output[0] if node else ""


def _wrong(trial: Trial) -> str:
    name, errors = next(iter(trial.wrong.items()))
    how, contrast = ("with its default", "without") if errors.is_made_wrong else ("without", "with it")
    optimized, plain = in_decibels(errors.made), in_decibels(errors.plain)
    wrong, right = (optimized, plain) if errors.is_made_wrong else (plain, optimized)
    return f"{how} optimization computes it wrongly: output '{name}' at {wrong} dB, {right} dB {contrast}"


def useless(cases: Sequence[Case], trials: Sequence[Trial]) -> str:
    """Return in words an output that is of no use at another size, empty if there is none.

    It is good at the first size, and its error at another size exceeds the power of the output at either.
    """
    for case, trial in zip(cases[1:], trials[1:], strict=True):
        for name, errors in trial.errors.items():
            first = trials[0].errors.get(name)
            if first and first.plain <= _GOOD and _is_useless(first, errors):
                other, initial = in_decibels(errors.plain), in_decibels(first.plain)
                return (
                    f"output '{name}' is at {other} dB on {case.where}, but {initial} dB at its first sizes"
                )
    return ""


def _is_useless(first: OutputErrors, errors: OutputErrors) -> bool:
    return errors.plain * errors.power > max(first.power, errors.power)


def is_of_the_float_model(source: Source, reference: FloatRun, run: RunOptions) -> bool:
    """Return whether ONNX Runtime with optimization fails on the float model, too, or computes it wrongly.

    Its optimization relies on declared sizes, which may be those of one sample.
    """
    try:
        outputs = run_in_time(source.open(run), reference.feed)
    except Exception:  # of the runtime, which shares no narrower class
        return True
    arrays = ((name, array) for name, array in reference.outputs.items() if is_float_array(array))
    return any(relative_error(array, outputs[name]) > NOTICED for name, array in arrays)
