"""What a function that makes a model returns."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from onnx_narrow.api.written import checked_path
from onnx_narrow.summaries.words import Detail
from transforms import model_io
from transforms.files.paths import AnyPath
from transforms.judge.decisions import Tried
from transforms.run.beside_float import BesideFloat
from transforms.scheme import Scheme

if TYPE_CHECKING:
    from transforms.pipelines.metric_figure import MetricFigure
    from transforms.precision.sensitivity import Sensitivity


@dataclass(frozen=True, eq=False)
class Result:
    """A model, and what was done to make it.

    Attributes
    ----------
    path : Path or None
        The file that was written; None if none was asked for.
    scheme : Scheme or None
        The scheme in use, in which nothing is open: with it, no outputs decide again. None of BF16.
    converted : mapping of str to int
        How many tensors or nodes are in low precision, by format and role.
    kept : mapping of str to int
        How many nodes compute in float, by operator or reason.
    decided : list of Tried
        What outputs on samples were asked about: each change, its gain in dB with its standard error, and
        whether it was kept.
    sqnr : float or None
        Signal to quantization noise in dB of the outputs, as samples let expect it on others: what the
        summary says after ``Outputs:``, or of a target in dB. It is before the Softmax, if there is one.
        With ``fast``, of tuned or mixed models and of language models, that of the one sample of the first
        run. None if it was not compared.
    sqnr_error : float or None
        Error of ``sqnr`` in dB: other data of the same kind are within two of it as a rule. None where it
        cannot be told, as of one sample.
    samples : int
        How many samples ``sqnr`` is of; 0 if it was not compared.
    held_out : bool
        Whether these samples decided nothing, or were held out in folds from the ranges of models.
    metric : MetricFigure or None
        The metric that the model was held to, on samples that did not search: its ``value``, ``interval``,
        ``bound`` and number of ``samples``; None without one.
    time : BesideFloat or None
        Seconds of the processor for an inference, beside the float model; None if it was not timed.
    steps : list of (str, float)
        The steps that ran, with the seconds of each.
    notes, warnings : list of str
        What the command prints on stdout and stderr.
    sensitivity : Sensitivity or None
        What each format does to each layer, of mixed precision with samples.
    """

    path: Path | None = None
    scheme: Scheme | None = None
    converted: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    decided: list[Tried] = field(default_factory=list)
    sqnr: float | None = None
    sqnr_error: float | None = None
    samples: int = 0
    held_out: bool = False
    metric: MetricFigure | None = None
    time: BesideFloat | None = None
    steps: list[tuple[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sensitivity: Sensitivity | None = None
    in_memory: onnx.ModelProto | None = None

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model, with external data read in: from its file at the first use, if it was written.

        Raises ValueError where none was made.
        """
        if self.in_memory is not None:
            return self.in_memory
        if self.path is None:
            raise ValueError("no model was made: the layers were analyzed alone")
        return onnx.load(self.path)

    def save(self, path: AnyPath, *, force: bool = False) -> Path:
        """Write the model to a file, which must not exist unless ``force``; return its path."""
        checked = checked_path(path, force=force)
        model_io.save(model_io.load(self.model), checked, force=force)
        return checked

    def __repr__(self) -> str:
        name = f" {str(self.path)!r}" if self.path else ""
        return "\n".join([f"<onnx_narrow.Result{name}>", *self._lines()])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in (line.split(": ", 1) if ": " in line else ("", line) for line in self._lines())
        )
        return f"<table>{rows}</table>"

    def _lines(self) -> Iterator[str]:
        yield from (line.strip() for line in self.notes if not isinstance(line, Detail))
        yield from self.warnings
