"""The metric of a model that was held to a goal, kept for its record."""

from __future__ import annotations

from transforms.pipelines.metric_figure import MetricFigure
from transforms.pipelines.work import Work
from transforms.search.target import Scored


def keep_figure(work: Work, value: float, error: float) -> None:
    """Keep the metric of the model, where a gate holds for it, or a goal that it may miss."""
    goal, apart = work.options.goal, work.held_out
    if goal is not None and apart is not None and (goal.is_gate or work.options.allow_miss):
        scored = Scored(value, error, len(apart.feeds))
        work.record.metric = MetricFigure(goal.words, scored, goal.bound, work.record.judged_digest)
