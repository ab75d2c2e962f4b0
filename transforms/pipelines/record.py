"""The record of a job from the float model to the model that is saved."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record
from transforms.pipelines.first_result import FirstRun
from transforms.scheme import Scheme

if TYPE_CHECKING:
    from transforms.finetune.tuned import TunedModel
    from transforms.pipelines.metric_figure import MetricFigure
    from transforms.precision.chosen import BesidePreset, FloatLayers, Reached
    from transforms.precision.sensitivity import Sensitivity


@dataclass
class JobRecord(Record):
    """What each step did beside quantizing.

    ``steps``: each step that ran, with its seconds. ``fixed``: how many dimensions of inputs were fixed.
    ``placed``: layers in float for their time; ``beside``: the model without its
    target; ``reached``: finer layers for a goal; ``tuned``: layers with tuned weights, on ``tuned_on``
    samples. ``stored``: lines on the form in which weights are stored. ``mixed``: the MixedPrecision of
    :mod:`transforms.precision.mix`, with the ``sensitivity`` of layers.
    ``first``: the first run; ``rechecked``: lines on targets as the model is tuned and written;
    ``is_compared``: whether outputs were compared then. ``metric``: what a gate found, on samples of the
    SHA-256 ``judged_digest``.
    ``source_sha256``: the digest of the source, after the step ``load``; ``asked``: the scheme that was asked
    for, where embeddings are left out of the one that is followed. ``untuned``: the model before it was
    tuned, with its scheme; ``unstored``: before weights got the form in which they are stored.
    """

    steps: list[tuple[str, float]] = field(default_factory=list)
    fixed: int = 0
    placed: FloatLayers | None = None
    beside: BesidePreset | None = None
    reached: Reached | None = None
    tuned: TunedModel | None = None
    tuned_on: int = 0
    stored: list[str] = field(default_factory=list)
    mixed: object = None
    sensitivity: Sensitivity | None = None
    first: FirstRun | None = None
    rechecked: list[str] = field(default_factory=list)
    is_compared: bool = False
    metric: MetricFigure | None = None
    judged_digest: str = ""
    source_sha256: str | None = None
    asked: Scheme | None = None
    untuned: tuple[gs.Graph, Scheme] | None = None
    unstored: gs.Graph | None = None

    def take_over(self, other: Record) -> None:
        """Take what another record says of how a model was made; decisions and steps stay those of before."""
        for one in fields(Record):
            if one.name not in ("decisions", "steps"):
                setattr(self, one.name, getattr(other, one.name))

    @property
    def metric_entries(self) -> dict[str, str]:
        """The entry of the metadata on the metric that the model was held to, if it was."""
        return {} if self.metric is None else self.metric.entries()
