"""What a first run shows to be wrong, in words, and the node that it is found at."""

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
"""Squared error of an output by its power up to which a model computes it: what it makes of other sizes can
then be held against that."""


def fault(exported: Exported, case: Case, trial: Trial, run: RunOptions) -> tuple[str, str]:
    """Return what is wrong in words, and the name of the tensor that the node makes, empty if unknown."""
    change = None if trial.failure else max(one.between for one in trial.wrong.values())
    from transforms.runtime.find_fault import find_fault  # rarely needed

    node = find_fault(*exported, case.feed, run, change)
    place = f"{node.op_type} '{node.name or node.output[0]}'" if node else "the model"
    words = f"with its default optimization fails: {trial.failure}" if trial.failure else _wrong(trial)
    where = f" on {case.where}" if case.where else ""
    return f"{place}: ONNX Runtime {words}{where}", node.output[0] if node else ""


def _wrong(trial: Trial) -> str:
    name, errors = next(iter(trial.wrong.items()))
    how, contrast = ("with its default", "without") if errors.is_made_wrong else ("without", "with it")
    made, plain = in_decibels(errors.made), in_decibels(errors.plain)
    wrong, right = (made, plain) if errors.is_made_wrong else (plain, made)
    return f"{how} optimization computes it wrongly: output '{name}' at {wrong} dB, {right} dB {contrast}"


def useless(cases: Sequence[Case], trials: Sequence[Trial]) -> str:
    """Return which output is of no use at another size, empty if none is.

    One that is good at the first size, and whose error at another one is larger than the output is at either.
    """
    for case, trial in zip(cases[1:], trials[1:], strict=True):
        for name, errors in trial.errors.items():
            first = trials[0].errors.get(name)
            if first and first.plain <= _GOOD and _is_useless(first, errors):
                other, one = in_decibels(errors.plain), in_decibels(first.plain)
                return f"output '{name}' is at {other} dB on {case.where}, but {one} dB at its first sizes"
    return ""


def _is_useless(first: OutputErrors, errors: OutputErrors) -> bool:
    return errors.plain * errors.power > max(first.power, errors.power)


def is_of_the_float_model(source: Source, reference: FloatRun, run: RunOptions) -> bool:
    """Return whether ONNX Runtime with optimization fails on the float model, too, or computes another thing.

    It goes by declared sizes, which may be those of one sample.
    """
    try:
        made = run_in_time(source.open(run), reference.feed)
    except Exception:  # of the runtime, which shares no narrower class
        return True
    arrays = ((name, array) for name, array in reference.outputs.items() if is_float_array(array))
    return any(relative_error(array, made[name]) > NOTICED for name, array in arrays)
