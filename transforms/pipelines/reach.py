"""Step: keep as few layers finer as the outputs need to reach a goal on held-out samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transforms.judge.constants import SEARCHED_ON
from transforms.judge.sample_roles import searching, taken
from transforms.pipelines.load import read_float
from transforms.pipelines.rebuild import rebuilt, take_over
from transforms.pipelines.work import Work
from transforms.scheme import Scheme

if TYPE_CHECKING:
    from transforms.precision.reach import Built


def reach(work: Work) -> None:
    """Search the layers, judge each model on the samples that were held out, and take the last one.

    Raises TargetError where no choice of layers reaches the goal.
    """
    goal, apart = work.options.goal, work.held_out
    if goal is None or apart is None:
        return
    from transforms.precision.finer_scheme import fallback_rule  # imports take time that small jobs notice
    from transforms.precision.reach import reach_target

    last = work  # models before the last are let go

    def _build(scheme: Scheme) -> Built:
        nonlocal last
        last = rebuilt(work, scheme)
        return last.graph, last.scheme

    feeds = (feed for _, feed in apart.data.feeds(work.graph))
    searched = taken(feeds, searching(SEARCHED_ON))
    progress, told = work.events.phase("searching", "model"), work.scheme
    found = reach_target(
        (work.graph, work.scheme),
        work.float_form(),
        lambda: read_float(work, told),
        _build,
        searched,
        apart.feeds,
        goal,
        fallback_rule(work.options.fallback, work.scheme),
        work.options.run,
        lambda done, note: progress(done, None, note),
    )
    work.record.reached = found
    if found.layers:
        take_over(work, last)
