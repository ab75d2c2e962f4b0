"""Split the samples of a job with a target: those that judge are used for nothing else."""

from __future__ import annotations

from dataclasses import replace

from transforms.calibrate.calibration_data import CalibrationData
from transforms.judge.softmax_outputs import softmax_outputs
from transforms.pipelines.work import Work
from transforms.precision.held_out import GATE_EVERY, MOST_OF_GATES, hold_out
from transforms.search.gate import Gate
from transforms.search.target import SEEN_BEFORE_SOFTMAX


def part(work: Work, data: CalibrationData) -> None:
    """Hold out samples for the target of a work; the others become its data.

    Sets ``before_softmax`` of the target if the model ends in a Softmax, and the ``places`` of a gate. Raises
    ValueError for a gate if the samples are too few to hold any out.
    """
    goal = work.options.goal
    periods = (GATE_EVERY, MOST_OF_GATES) if isinstance(goal, Gate) else ()
    in_folds = not isinstance(goal, Gate) and _gives_ranges_alone(work)
    apart = hold_out(data, work.graph, *periods, in_folds=in_folds)
    work.held_out, work.data = apart, apart.data
    if goal is not None and goal.metric in SEEN_BEFORE_SOFTMAX and softmax_outputs(work.graph):
        goal = replace(goal, before_softmax=True)
        work.options = replace(work.options, goal=goal)
    if not isinstance(goal, Gate):
        return
    if not apart.is_apart:
        raise ValueError(f"metric {goal.metric}: {apart.where}: give four or more")
    judged = replace(goal, places=tuple(apart.places))
    work.options = replace(work.options, goal=judged)
    work.record.judged_digest = apart.digest(work.graph)


def _gives_ranges_alone(work: Work) -> bool:
    """Return whether samples give ranges but no weights, so that the model can be built for each fold."""
    activation = work.asked.format(work.asked.activation)
    is_measured = activation is not None and activation.is_integer and not work.asked.is_dynamic
    return is_measured and work.options.may_compare and not work.fits_weights and work.options.tuning is None
