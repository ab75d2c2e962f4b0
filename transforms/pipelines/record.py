"""The record of a job, from the float model to the saved model."""

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
    """Results of the steps of a job.

    ``steps``: each step that ran, with its seconds. ``fixed``: the number of fixed dimensions of inputs.
    ``placed``: layers in float for speed; ``beside``: the comparison with the model without its target
    device; ``reached``: finer layers for a target; ``tuned``: layers with tuned weights, on ``tuned_on``
    samples. ``stored``: lines on the stored form of weights. ``mixed``: the MixedPrecision of
    :mod:`transforms.precision.mix`, with the ``sensitivity`` of layers. ``first``: the first run;
    ``rechecked``: lines on targets checked again after tuning or on the final model; ``is_compared``: whether
    outputs of the final model were compared. ``metric``: the metric of a gate, on samples of the SHA-256
    ``judged_digest``. ``source_sha256``: the digest of the source, after the step ``load``. ``asked``: the
    scheme that was asked for, if embeddings are excluded from the one in use. ``untuned``: the model before
    tuning, with its scheme; ``unstored``: the graph before weights were converted to their stored form.
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
        """Copy the fields of another record of quantization, except decisions and steps."""
        for attribute in fields(Record):
            if attribute.name not in ("decisions", "steps"):
                setattr(self, attribute.name, getattr(other, attribute.name))

    @property
    def metric_entries(self) -> dict[str, str]:
        """The metadata entry of the metric; empty without one."""
        return {} if self.metric is None else self.metric.entries()
