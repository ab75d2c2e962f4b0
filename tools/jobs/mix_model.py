"""Automatic mixed precision with progress on the terminal."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tools.cli.progress import Progress
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError
from transforms.mix_precision.mix import MixedPrecision, MixingOptions, ProgressHooks, mix_precision
from transforms.scheme import Scheme
from transforms.search.assign_precision import Step


def mix_model(
    graph: gs.Graph, scheme: Scheme, data: CalibrationData | None, options: MixingOptions, flag: str
) -> MixedPrecision:
    """Do what :func:`transforms.mix_precision.mix_precision` does; ``flag`` is the option that names data."""
    with (
        Progress("calibrating", "sample") as samples,
        Progress("sensitivity", "run") as layers,
        Progress("trying", "model") as models,
    ):
        tried: list[Step] = []

        def _note(step: Step) -> None:
            tried.append(step)
            decision = "accepted" if step.accepted else "skipped"
            models.show(len(tried), None, f"{step.value:.6g} {decision}")

        try:
            return mix_precision(
                graph, scheme, data, options, ProgressHooks(samples.show, layers.show, _note)
            )
        except MissingDataError as error:
            raise ValueError(f"{error}: give {flag} DIR") from error
