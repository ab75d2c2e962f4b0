"""A page on where a quantized model differs from its float model."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onnx_narrow.api.image_keywords import Preprocess
from onnx_narrow.api.loss_section import LossSection, loss_section
from onnx_narrow.api.samples import SampleOptions, open_folder
from onnx_narrow.api.sources import Data, Model, placed, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked, files_in
from onnx_narrow.api.work_options import run_of
from onnx_narrow.charts.html_report import page
from onnx_narrow.options.option import Keywords
from onnx_narrow.options.shared import OF_SAMPLES
from onnx_narrow.summaries import compared_models
from onnx_narrow.summaries.advised_call import Door
from onnx_narrow.summaries.model_history import ModelHistory
from transforms.compare.compare_models import Progress, compare_models
from transforms.files.cleanup import temporary_folder
from transforms.files.output_file import refuse_other_ending, write_text
from transforms.files.paths import AnyPath
from transforms.files.spelling import is_python, spelled
from transforms.origins.loss_table import rows, to_csv, to_json
from transforms.pipelines.source import Source
from transforms.run.events import Events, each_told

_NAMES = {"results": "running models", "layers": "comparing layers", "histograms": "counting values"}
_THEN = {"results": "matching tensors", "histograms": "timing"}
_ORIGINS = "finding the origins"
_PHASES = (
    *("loading", _NAMES["results"], _THEN["results"], _NAMES["layers"], _NAMES["histograms"]),
    *(_THEN["histograms"], _ORIGINS),
)

_FLOAT, _QUANTIZED, _SAMPLES, _ENCODER = "m.onnx", "q.onnx", "samples", "encoder.onnx"
"""Names in commands for models and samples that are not in files."""


def report(
    float_model: Model,
    quantized: Model,
    output: AnyPath,
    *,
    data: Data,
    json: AnyPath | None = None,
    csv: AnyPath | None = None,
    min_sqnr: float | None = None,
    force: bool = False,
    limit: int | None = None,
    image_size: int | Sequence[int] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str | None = None,
    preprocess: Preprocess | None = None,
    sequences: bool = False,
    states: Mapping[str, str] | None = None,
    feeds_from: Model | None = None,
    feeds: Mapping[str, str] | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    progress: Watcher | Events | None = None,
) -> list[dict[str, Any]]:
    """Write a page on where a quantized model differs from its float model, and return its rows.

    Parameters
    ----------
    float_model, quantized : path, ModelProto or Graph
        The models. Those in memory are written to a temporary folder for the time, as their cost is measured
        in processes of their own; commands on the page call them ``m.onnx`` and ``q.onnx``.
    output : path
        The HTML page to write.
    data : folder, file, array, reader, iterable or callable
        Samples, see :data:`onnx_narrow.api.sources.Data`; those in memory are written to a temporary folder,
        and called ``samples`` in commands.
    json, csv : path, optional
        Files to write: what each layer adds, inherits and holds of the errors, and the table of layers.
    min_sqnr : float, optional
        Mark the results as good, to be looked at, or bad by this SQNR in dB.
    force : bool
        Whether existing files are replaced.
    limit, image_size, mean, std, layout, preprocess, sequences, states, feeds_from, feeds : optional
        How samples are read, as in :func:`onnx_narrow.quantize`.
    provider, threads : str and int
        Execution provider of ONNX Runtime, and threads; all cores by default.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.

    Returns
    -------
    list of dict
        For each layer what it loses by itself, what it inherits and its share, see
        :func:`transforms.origins.loss_table.rows`; empty where that cannot be told, as the page says.

    Raises
    ------
    TypeError, ValueError, OSError
        As :func:`onnx_narrow.quantize`.
    """
    keywords = checked("report", locals())
    sources = source_of(float_model), source_of(quantized)
    options = SampleOptions.of(keywords, replace(run_of(keywords), spin=False))
    files = files_in(keywords, "output", "json", "csv", inputs=[source.path for source in sources])
    refuse_other_ending(files["output"], "an HTML page", ".html", ".htm")
    history_of = _history_of(*sources, keywords)
    with Told(progress) as told, temporary_folder() as folder:
        told.expect(*_PHASES)
        paths = placed(sources[0], folder, _FLOAT), placed(sources[1], folder, _QUANTIZED)
        with open_folder(options, sources[0], told) as samples:
            told.phase("loading")
            comparison = compare_models(*paths, samples, progress=_each(told))
            section = loss_section(*paths, samples, history_of, told.phase(_ORIGINS, "layer"))
        write_text(files["output"], page(comparison, section.html, min_sqnr))
        _write_tables(section, sources, files)
        told.tell(compared_models.lines(comparison, section.lines))
        told.note(f"Report written to '{output}' ({files['output'].stat().st_size / 1e3:.0f} kB).")
    return rows(section.origins) if section.origins else []


def _each(events: Events) -> Progress:
    """Return the progress callback for the phases that run samples, and for those that follow them."""

    def _told(samples: Iterable[Any], phase: str) -> Iterator[Any]:
        progress = events.phase(_NAMES[phase], "sample")
        yield from each_told(samples, progress, operator.length_hint(samples))
        if phase in _THEN:
            events.phase(_THEN[phase])

    return _told


def _history_of(float_model: Source, quantized: Source, keywords: Keywords) -> Callable[..., ModelHistory]:
    """Return ModelHistory with the names that calls use for models and samples."""
    names = (name for name in OF_SAMPLES if name in keywords and not callable(keywords[name]))
    of_samples = {"data": keywords["data"], **{name: keywords[name] for name in names}}
    variables: dict[str, str] = {}
    if not isinstance(keywords["data"], str | os.PathLike):
        of_samples["data"], variables[_SAMPLES] = _SAMPLES, "data"
    if "feeds_from" in keywords:
        encoder = source_of(keywords["feeds_from"]).path
        of_samples["feeds_from"] = encoder or _ENCODER
        variables |= {} if encoder else {_ENCODER: "feeds_from"}
    for source, file, name in ((float_model, _FLOAT, "float_model"), (quantized, _QUANTIZED, "quantized")):
        variables |= {} if source.path else {file: name}
    paths = float_model.path or Path(_FLOAT), quantized.path or Path(_QUANTIZED)
    return partial(ModelHistory, *paths, of_samples, door=Door(is_python(), variables))


def _write_tables(section: LossSection, sources: Sequence[Source], files: Mapping[str, Path]) -> None:
    """Write the tables in files of their own. Raises ValueError where the layers could not be measured."""
    if section.origins is None:
        if files.keys() & {"json", "csv"}:
            words = "it is not known what each layer adds, the page says why"
            raise ValueError(f"{spelled('{json} and {csv}')}: {words}")
        return
    if "json" in files:
        about = {"float": str(sources[0]), "quantized": str(sources[1])}
        write_text(files["json"], to_json(section.origins, about))
    if "csv" in files:
        write_text(files["csv"], to_csv(section.origins))
