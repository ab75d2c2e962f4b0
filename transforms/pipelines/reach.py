"""Step: move the fewest layers to a finer format with which the outputs meet a target on held-out samples."""

from __future__ import annotations

from functools import cache, partial

from transforms.judge.constants import SEARCHED_ON
from transforms.judge.sample_roles import searching, taken
from transforms.pipelines.folds import folds_for_goal
from transforms.pipelines.keep_figure import keep_figure
from transforms.pipelines.rebuild import LastRebuilt, nameable, take_over
from transforms.pipelines.work import Work


def reach(work: Work) -> None:
    """Search the layers, judge each model on the held-out samples, and take over the last one.

    Raises TargetError if no choice of layers meets the target, unless the options allow a miss.
    """
    goal, apart = work.options.goal, work.held_out
    if goal is None or apart is None:
        return
    from transforms.precision.finer_scheme import fallback_rule  # imports take time that small jobs notice
    from transforms.precision.reach import reach_target

    build = LastRebuilt(work)
    feeds = (feed for _, feed in apart.data.feeds(work.graph))
    searched = taken(feeds, searching(SEARCHED_ON))
    progress, names = work.events.phase("choosing layers", "model"), cache(partial(nameable, work))
    reached = reach_target(
        (work.graph, work.scheme),
        work.float_form(),
        names,
        build,
        searched,
        apart.feeds,
        goal,
        fallback_rule(work.options.fallback, work.scheme),
        work.run_here,
        lambda done, note: progress(done, None, note),
        allow_miss=work.options.allow_miss,
        allow_large=work.options.allow_large,
        of_fold=folds_for_goal(work, lambda: build.last),
    )
    work.record.reached = reached
    if reached.layers:
        take_over(work, build.last)
    keep_figure(work, reached.after, reached.error)
