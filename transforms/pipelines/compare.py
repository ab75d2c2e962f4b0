"""Step: compare the final model with the float model."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration_data import CalibrationData
from transforms.judge.budget import too_large
from transforms.judge.decisions import Checked
from transforms.pipelines.check_outputs import UselessError, check_outputs
from transforms.pipelines.first_result import FirstRun
from transforms.pipelines.folds import FoldError, Folds, folds_for_goal, has_folds
from transforms.pipelines.work import Work


def compare(work: Work) -> None:
    """Compare outputs on samples that decided nothing, and check the target again on the model as written.

    If the options do not ask for a comparison, the model is compared only after changes that nothing has
    measured. Without samples, models that round activations at run time are compared on random tokens or
    numbers. Raises UselessError for a language model of no use, TargetError for a model that now misses its
    target.
    """
    first = work.record.first
    assert first is not None, "the model was tried out"
    if work.data is None and work.scheme.is_dynamic and work.options.may_compare:
        _compare_on_random(work, first)
        return
    # what follows all choices, by options or after a faulty node, has not been measured
    last = work.options.changes_last
    if work.data is None or not work.options.may_compare or not (work.options.compares or last or first.kept):
        return
    work.record.is_compared = True
    if last and first.why_not is not None:
        work.events.warn(f"Warning: outputs not compared, for the model does not run here: {first.why_not}")
        return
    work.events.phase("comparing outputs")
    graph = work.graph if first.why_not is None or work.record.unstored is None else work.record.unstored
    outputs = _checked(work, graph)
    if outputs and outputs.is_diverged:
        raise UselessError(outputs)
    if last or first.kept:
        _check_goal(work)


def _checked(work: Work, graph: gs.Graph) -> Checked | None:
    """Return the error of the model, on samples held out in folds if it can be built for each fold."""
    floats = work.float_form()
    try:
        return check_outputs(work, floats, graph, Folds(work, floats) if has_folds(work) else None)
    except FoldError as error:
        work.record.decisions.notes.append(f"Samples not held out: {error}")
        return check_outputs(work, floats, graph)


def _compare_on_random(work: Work, first: FirstRun) -> None:
    """Compare outputs on random feeds as in the search for outliers; note why if the model fails on them."""
    if first.why_not is not None or first.not_run or too_large(work.graph):
        return
    work.events.phase("comparing outputs")
    from transforms.run.lifelike_feeds import FEEDS, lifelike_feeds

    try:
        float_graph = work.float_form()
        data = CalibrationData(list(lifelike_feeds(float_graph, FEEDS)), run=work.run_here)
        outputs = check_outputs(work, float_graph, work.graph, random=data)
    except Exception as error:  # the runtime's exceptions share no narrower class
        work.record.notes.append(f"Outputs not compared, the model does not run on random numbers: {error}")
        return
    work.record.is_compared = outputs is not None
    if outputs and outputs.is_diverged:
        raise UselessError(outputs)


def _check_goal(work: Work) -> None:
    """Record the metric of the model as written; TargetError if it misses its target, unless allowed."""
    goal, apart = work.options.goal, work.held_out
    if goal is None or apart is None:
        return
    from transforms.precision.bench import goal_bench  # imports take time that small jobs notice

    of_fold = folds_for_goal(work, lambda: work)
    bench = goal_bench(work.float_form(), apart.feeds, goal, work.run_here, of_fold=of_fold)
    scored = bench.scored(work.graph)
    if not work.options.allow_miss:
        goal.check(scored.value, f"the model as it is written, on {apart.where},", scored.error)
    metric = goal.text(scored.value, scored.error)
    from transforms.pipelines.keep_figure import keep_figure

    keep_figure(work, scored.value, scored.error)
    missed = "" if goal.is_shown(scored) else "missed, "
    line = f"Target of {goal.bound}: {missed}{metric} on {apart.where} as it is written"
    work.record.rechecked.append(line)
