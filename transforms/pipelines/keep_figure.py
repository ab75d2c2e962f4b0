"""Record the metric of a model that was judged for a target."""

from __future__ import annotations

from transforms.pipelines.metric_figure import MetricFigure
from transforms.pipelines.work import Work
from transforms.search.target import Scored


def keep_figure(work: Work, value: float, error: float) -> None:
    """Record the metric of the model for a gate, or a target that the model may miss."""
    goal, apart = work.options.goal, work.held_out
    if goal is not None and apart is not None and (goal.is_gate or work.options.allow_miss):
        scored = Scored(value, error, len(apart.feeds))
        work.record.metric = MetricFigure(goal.words, scored, goal.bound, work.record.judged_digest)
