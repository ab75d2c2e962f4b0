"""Step of a conversion to BF16: keep layers in float for a target."""

from __future__ import annotations

from transforms.calibrate.calibration_data import CalibrationData
from transforms.pipelines.bf16 import of_bf16
from transforms.pipelines.keep_figure import keep_figure
from transforms.pipelines.part import part
from transforms.pipelines.work import Work
from transforms.precision.bf16 import keep_float
from transforms.run.mend_shapes import mend_shapes


def keep_layers(work: Work) -> None:
    """Exclude the fewest layers with which the conversion meets the target, judged on held-out samples.

    Raises TargetError if no choice of layers meets it.
    """
    conversion, goal = of_bf16(work), work.options.goal
    assert goal is not None, "entered for it"
    if work.data is None:
        raise ValueError(f"the goal of {goal.bound} needs samples")
    progress = work.events.phase("measuring", "model")
    run = work.options.run
    samples = [feed for _, feed in work.data.feeds(work.graph)]
    mend_shapes(work.graph, samples, run)
    part(work, CalibrationData(samples, run=run))
    goal, apart = work.options.goal, work.held_out
    assert goal is not None and apart is not None, "they were parted for it"
    feeds = [feed for _, feed in apart.data.feeds(work.graph)]

    def _show(done: int, note: str) -> None:
        progress(done, None, note)

    conversion.kept = keep_float(
        work.graph, conversion.conversion, feeds, apart.feeds, goal, run=run, progress=_show
    )
    conversion.conversion = conversion.conversion.excluding(conversion.kept.patterns)
    keep_figure(work, conversion.kept.after, conversion.kept.error)
